//! One line of text for an error and its source chain. Without dependencies, so that sandboxed processes can use it.

use std::error::Error;

/// Formats an error and its source chain on one line: `what failed: why: why that`. A source is omitted if the text before it already ends
/// with it.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| Error::source(*cause)) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Failed(&'static str, io::Error);

    impl fmt::Display for Failed {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        let refused = || io::Error::other(io::Error::other("connection refused"));
        assert_eq!(causes(&Failed("no answer", refused())), "no answer: connection refused");
        assert_eq!(
            causes(&Failed("no answer: connection refused", refused())),
            "no answer: connection refused"
        );
        assert_eq!(causes(&refused()), "connection refused");
    }
}
