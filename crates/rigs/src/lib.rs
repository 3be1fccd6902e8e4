//! What several test programs need: Debian packages, PostgreSQL, PgBouncer, ports, and a simulated month. No part of the product.

pub mod database;
pub mod debian;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;
pub mod simulation;
