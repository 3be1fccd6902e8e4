//! Ids, times and secrets as values of database columns. Only the crate of a type can implement a trait of another
//! crate for it, so this stands here and not in the store, which alone turns it on.

mod sqlite {
    use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

    use crate::model::Id;
    use crate::timestamp::Timestamp;

    impl ToSql for Id {
        fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
            Ok(ToSqlOutput::from(self.as_str()))
        }
    }

    impl FromSql for Id {
        fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
            value.as_str()?.parse().map_err(FromSqlError::other)
        }
    }

    impl ToSql for Timestamp {
        fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
            Ok(ToSqlOutput::from(self.as_millis()))
        }
    }

    impl FromSql for Timestamp {
        fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
            value.as_i64().map(Self::from_millis)
        }
    }
}

mod postgres {
    use std::error::Error;

    use bytes::BytesMut;
    use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

    use crate::model::Id;
    use crate::timestamp::Timestamp;

    type Fault = Box<dyn Error + Sync + Send>;

    impl ToSql for Id {
        fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Fault> {
            self.as_str().to_sql(ty, out)
        }

        accepts!(TEXT);
        to_sql_checked!();
    }

    impl<'a> FromSql<'a> for Id {
        fn from_sql(ty: &Type, raw: &'a [u8]) -> std::result::Result<Self, Fault> {
            Ok(<&str>::from_sql(ty, raw)?.parse()?)
        }

        accepts!(TEXT);
    }

    impl ToSql for Timestamp {
        fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Fault> {
            self.as_millis().to_sql(ty, out)
        }

        accepts!(INT8);
        to_sql_checked!();
    }

    impl<'a> FromSql<'a> for Timestamp {
        fn from_sql(ty: &Type, raw: &'a [u8]) -> std::result::Result<Self, Fault> {
            i64::from_sql(ty, raw).map(Self::from_millis)
        }

        accepts!(INT8);
    }
}
