//! What several test programs need: Debian packages, PostgreSQL, PgBouncer, and ports. No part of the product.

pub mod database;
pub mod debian;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;
