//! Unions of the spec: objects of which exactly one field must be set.

/// More or less than one option of a union is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", message(.0))]
pub struct NotOne(pub &'static [&'static str]);

pub(crate) fn message(options: &[&str]) -> String {
    format!("set exactly one of {}", options.join(", "))
}

/// Defines a struct of options and the enum of its choices, which borrow their values.
///
/// A row is `field: Variant(Type) = "name"`, where `name` is the field in YAML. The struct has an `Option<Type>` for each row, `OPTIONS`
/// (the names), and `choice()`, which returns the option that is set. Other fields precede `as`, or follow `and`.
///
/// Objects keep the struct, not the enum: one object with two options would otherwise not deserialize, and would break a watch of all.
#[macro_export]
macro_rules! one_of {
    (
        $(#[$attribute:meta])*
        pub struct $Options:ident $({ $($(#[$first_attribute:meta])* pub $first:ident: $First:ty,)+ })? as $Choice:ident {
            $($(#[$field_attribute:meta])* $field:ident: $Variant:ident($Type:ty) = $name:literal,)+
        }
        $(and { $($(#[$last_attribute:meta])* pub $last:ident: $Last:ty,)+ })?
    ) => {
        $(#[$attribute])*
        pub struct $Options {
            $($($(#[$first_attribute])* pub $first: $First,)+)?
            $(
                $(#[$field_attribute])*
                #[serde(rename = $name, default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$Type>,
            )+
            $($($(#[$last_attribute])* pub $last: $Last,)+)?
        }

        #[doc = concat!("The option of [`", stringify!($Options), "`] that is set.")]
        #[derive(Clone, Copy, Debug)]
        pub enum $Choice<'a> {
            $($Variant(&'a $Type),)+
        }

        impl $Choice<'_> {
            /// Name of the option in YAML.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant(_) => $name,)+
                }
            }
        }

        impl $Options {
            /// Names of the options in YAML.
            pub const OPTIONS: &'static [&'static str] = &[$($name),+];

            /// Returns the option that is set.
            ///
            /// # Errors
            /// [`NotOne`]($crate::NotOne) unless exactly one is set.
            pub fn choice(&self) -> Result<$Choice<'_>, $crate::NotOne> {
                let mut choices = [$(self.$field.as_ref().map($Choice::$Variant)),+].into_iter().flatten();
                match (choices.next(), choices.next()) {
                    (Some(choice), None) => Ok(choice),
                    _ => Err($crate::NotOne(Self::OPTIONS)),
                }
            }
        }
    };
}
