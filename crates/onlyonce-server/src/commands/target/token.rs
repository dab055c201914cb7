//! The token for an admin port: in a variable or a file, never among the arguments, which other users of the machine can see.

use http::HeaderValue;

use super::Failure;

const EXPECTED: &str =
    "write env:NAME for a variable or file:PATH for a file; the token itself must not be an argument";

/// The `Authorization` of a token in this place. Nothing of a text that is no such place is shown.
pub(super) fn authorization(place: &str) -> Result<HeaderValue, Failure> {
    let token = match place.split_once(':') {
        Some(("env", name)) if !name.is_empty() => std::env::var(name).map_err(|_| {
            Failure::arguments(format!("--token: variable {name} is not set; set it, or use another"))
        })?,
        Some(("file", path)) if !path.is_empty() => std::fs::read_to_string(path).map_err(|error| {
            Failure::arguments(format!(
                "--token: file \"{path}\" cannot be read: {error}; use a file that this user may read"
            ))
        })?,
        Some(_) | None => {
            return Err(Failure::arguments(format!("--token does not say where the token is; {EXPECTED}")));
        }
    };
    let token = token.trim();
    let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| !token.is_empty());
    let mut value = value
        .ok_or_else(|| Failure::arguments(format!("--token: {place} is empty, or not a valid token")))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown_and_never_an_argument() {
        for (place, told) in [
            ("s3cret-s3cret-s3cret", "write env:NAME"),
            ("bearer:s3cret", "write env:NAME"),
            ("env:", "write env:NAME"),
            ("env:ONLYONCE_TEST_NO_SUCH", "ONLYONCE_TEST_NO_SUCH is not set"),
            ("file:/nowhere/at/all", "cannot be read"),
            ("file:/dev/null", "is empty, or not a valid token"),
        ] {
            let error = authorization(place).unwrap_err().to_string();
            assert!(error.contains(told), "{place}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
