//! Enums whose variants are words that are stored, sent and displayed.

/// The text is not a word of an enum that [`string_enum!`](crate::string_enum!) defines: another release wrote it, or
/// someone typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what}: {text:?}")]
pub struct UnknownWord {
    /// What the enum is about, such as `role`.
    pub what: &'static str,
    /// The text.
    pub text: String,
}

/// Defines an enum and the word of each of its variants, such as `enum Role: "role" { Viewer = "viewer", … }`. The
/// words are displayed, serialised and read. Another text is an [`UnknownWord`](crate::string_enum::UnknownWord) or, in
/// an enum such as `Action or Unknown`, this variant.
#[macro_export]
macro_rules! string_enum {
    ($(#[$about:meta])* $vis:vis enum $name:ident: $what:literal { $($variants:tt)+ }) => {
        $crate::string_enum! { @enum $(#[$about])* $vis $name { $($variants)+ } }

        impl std::str::FromStr for $name {
            type Err = $crate::string_enum::UnknownWord;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                let unknown = || $crate::string_enum::UnknownWord { what: $what, text: text.to_owned() };
                Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or_else(unknown)
            }
        }
    };

    ($(#[$about:meta])* $vis:vis enum $name:ident or $unknown:ident { $($variants:tt)+ }) => {
        $crate::string_enum! { @enum $(#[$about])* $vis $name { $($variants)+ } }

        impl std::str::FromStr for $name {
            type Err = std::convert::Infallible;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                Ok(Self::ALL.into_iter().find(|one| one.as_str() == text).unwrap_or(Self::$unknown))
            }
        }
    };

    (@enum $(#[$about:meta])* $vis:vis $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$each])* $variant,)+
        }

        impl $name {
            /// All of them.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word that is stored, sent and shown.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    string_enum! {
        /// How fast something goes.
        enum Speed: "speed" {
            /// A walk.
            Slow = "slow",
            /// A run.
            Fast = "fast",
        }
    }

    string_enum! {
        /// The colour of something.
        enum Colour or Other {
            /// Like blood.
            Red = "red",
            /// Another one.
            Other = "other",
        }
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        assert_eq!(Speed::ALL.map(Speed::as_str), ["slow", "fast"]);
        for speed in Speed::ALL {
            assert_eq!(speed.to_string().parse(), Ok(speed));
            assert_eq!(serde_json::to_value(speed).expect("a value"), speed.as_str());
        }
        let error = "faster".parse::<Speed>().expect_err("an unknown word");
        assert_eq!(error.to_string(), r#"unknown speed: "faster""#);
        assert_eq!((Colour::Red.as_str().parse(), "green".parse()), (Ok(Colour::Red), Ok(Colour::Other)));
    }
}
