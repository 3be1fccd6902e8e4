//! The values of parameters and columns, in the forms that both databases know.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::BytesMut;
use rusqlite::types::{FromSqlResult, ToSqlOutput, ValueRef};
use serde::Serialize;
use tokio_postgres::types::{IsNull, Kind, Type, accepts, to_sql_checked};

use super::{Action, TaskState, Via};
use tintype_domain::budget::Period;
use tintype_domain::endpoint::{AddedBy, DisabledFor, EndpointUrl, SigningSecret, Trouble};
use tintype_domain::event::{EventType, Subscription};
use tintype_domain::model::{EntryKind, Id, Surface};
use tintype_domain::person::Role;
use tintype_domain::request::{AspectRatio, TaskSettings};
use tintype_domain::text::hex;
use tintype_system::clock::Timestamp;

/// A value of a parameter.
#[derive(Clone)]
pub(crate) enum Value<'a> {
    Null,
    Boolean(bool),
    Integer(i64),
    Real(f32),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    /// JSON for SQLite, with bytes in hexadecimal; an array for PostgreSQL.
    List(Vec<Value<'a>>),
}

tintype_domain::opaque_debug!(Value<'_>);

impl Value<'_> {
    fn json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Boolean(value) => (*value).into(),
            Self::Integer(number) => (*number).into(),
            Self::Real(number) => (*number).into(),
            Self::Text(text) => text.as_ref().into(),
            Self::Bytes(bytes) => hex(bytes).into(),
            Self::List(values) => values.iter().map(Value::json).collect(),
        }
    }
}

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => rusqlite::types::Null.into(),
            Self::Boolean(value) => (*value).into(),
            Self::Integer(number) => (*number).into(),
            Self::Real(number) => (*number).into(),
            Self::Text(text) => text.as_ref().into(),
            Self::Bytes(bytes) => bytes.as_ref().into(),
            Self::List(_) => self.json().to_string().into(),
        })
    }
}

impl tokio_postgres::types::ToSql for Value<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (self, of.clone()) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Boolean(value), Type::BOOL) => value.to_sql(of, out),
            (Self::Integer(number), Type::INT2) => i16::try_from(*number)?.to_sql(of, out),
            (Self::Integer(number), Type::INT4) => i32::try_from(*number)?.to_sql(of, out),
            (Self::Integer(number), Type::INT8) => number.to_sql(of, out),
            (Self::Real(number), Type::FLOAT4) => number.to_sql(of, out),
            (Self::Text(text), Type::TEXT) => text.to_sql(of, out),
            (Self::Bytes(bytes), Type::BYTEA) => bytes.to_sql(of, out),
            (Self::List(values), of_list) if matches!(of_list.kind(), Kind::Array(_)) => values.to_sql(of, out),
            _ => Err(format!("a parameter is not of the type {of}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// What a statement takes as a parameter.
pub(crate) trait Parameter: Sync {
    fn value(&self) -> Value<'_>;
}

/// Takes parameters of these types in this form.
macro_rules! parameters {
    ($($form:ident($($type:ty),+) |$this:ident| $value:expr;)+) => {$($(
        impl Parameter for $type {
            fn value(&self) -> Value<'_> {
                let $this = self;
                Value::$form($value.into())
            }
        }
    )+)+};
}

parameters! {
    Boolean(bool) |value| *value;
    Integer(i64, u8, u16, u32) |number| *number;
    Integer(u64, usize) |number| i64::try_from(*number).unwrap_or(i64::MAX);
    Integer(Timestamp) |time| time.as_millis();
    // In milliseconds.
    Integer(Duration) |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Real(f32) |number| *number;
    Text(str, String) |text| AsRef::<str>::as_ref(text);
    Text(Action, AddedBy, AspectRatio, DisabledFor, EntryKind, EventType, Period, Role, Surface, TaskState,
        Trouble, Via)
        |word| word.as_str();
    Text(EndpointUrl, Id) |text| text.as_str();
    Text(Subscription) |events| events.to_string();
    Bytes([u8], [u8; 32], Vec<u8>) |bytes| AsRef::<[u8]>::as_ref(bytes);
}

impl Parameter for Value<'_> {
    fn value(&self) -> Value<'_> {
        self.clone()
    }
}

impl<T: Parameter + ?Sized> Parameter for &T {
    fn value(&self) -> Value<'_> {
        (**self).value()
    }
}

impl<T: Parameter> Parameter for Option<T> {
    fn value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, T::value)
    }
}

pub(crate) fn values<'a>(parameters: &'a [&dyn Parameter]) -> Vec<Value<'a>> {
    parameters.iter().map(|parameter| parameter.value()).collect()
}

/// Values as the driver of PostgreSQL takes them.
pub(crate) fn references<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn tokio_postgres::types::ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

/// A list as a parameter.
pub(crate) struct List<'a, T>(pub(crate) &'a [T]);

impl<T: Parameter> Parameter for List<'_, T> {
    fn value(&self) -> Value<'_> {
        Value::List(self.0.iter().map(T::value).collect())
    }
}

/// A value in JSON.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("texts and numbers are always JSON")
}

/// A value of a column.
pub(crate) trait Column: Sized {
    /// The form, which both databases return.
    type Raw: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>;

    fn read(raw: Self::Raw) -> Result<Self, impl std::fmt::Display>;
}

/// An integer of any width.
pub(crate) struct Integer(i64);

impl rusqlite::types::FromSql for Integer {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Self)
    }
}

impl<'a> tokio_postgres::types::FromSql<'a> for Integer {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *of {
            Type::INT2 => i16::from_sql(of, raw)?.into(),
            Type::INT4 => i32::from_sql(of, raw)?.into(),
            _ => i64::from_sql(of, raw)?,
        }))
    }

    accepts!(INT2, INT4, INT8);
}

/// Reads columns of these types from this form.
macro_rules! columns {
    ($($raw:ty as $($type:ty),+ => $read:expr;)+) => {$($(
        impl Column for $type {
            type Raw = $raw;

            fn read(raw: $raw) -> Result<Self, impl std::fmt::Display> {
                $read(raw)
            }
        }
    )+)+};
}

columns! {
    Self as bool, f32, String, Vec<u8> => Ok::<Self, Infallible>;
    Integer as i64 => |Integer(number)| Ok::<_, Infallible>(number);
    Integer as u8, u16, u32, u64, usize => |Integer(number)| Self::try_from(number);
    Integer as Timestamp => |Integer(millis)| Ok::<_, Infallible>(Self::from_millis(millis));
    Integer as Duration => |Integer(millis)| Ok::<_, Infallible>(Self::from_millis(millis.unsigned_abs()));
    String as Action, AddedBy, AspectRatio, DisabledFor, EndpointUrl, EntryKind, EventType, Id, Period, Role,
        SigningSecret, Subscription, Surface, Trouble, Via => |text: String| text.parse::<Self>();
    String as TaskSettings, Vec<Id>, Vec<String> => |json: String| serde_json::from_str::<Self>(&json);
}

impl<T: Column> Column for Option<T> {
    type Raw = Option<T::Raw>;

    fn read(raw: Self::Raw) -> Result<Self, impl std::fmt::Display> {
        raw.map(T::read).transpose()
    }
}
