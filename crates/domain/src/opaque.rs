//! Types whose content is not for logs.

/// Implements `Debug` for types whose content is secret, or long: it shows the name of the type.
#[macro_export]
macro_rules! opaque {
    ($name:ident $(<$lifetime:lifetime>)?) => {
        impl std::fmt::Debug for $name $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    };
}
