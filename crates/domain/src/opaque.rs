//! Types whose content must not be logged.

/// Implements `Debug` for types with secret or long content: it shows only the type's name.
#[macro_export]
macro_rules! opaque_debug {
    ($name:ident $(<$lifetime:lifetime>)?) => {
        impl std::fmt::Debug for $name $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    };
}
