//! The canonical form of a `multipart/form-data` body.
//!
//! Each part in order: its name, file name, content type and bytes, each with its length, and neither the boundary
//! nor any other header. Clients pick a fresh boundary for every try, so the bytes of a retry differ where its content
//! does not.
//!
//! Reading is strict, because servers differ in how they read what is malformed: such a body is its bytes.

use super::media;
use super::{put, put_optional};

/// The longest boundary that RFC 2046 allows.
const BOUNDARY_BYTES_MAX: usize = 70;

/// The parts of a body; none where it is not well formed.
pub(super) fn canonical(body: &[u8], boundary: &[u8]) -> Option<Vec<u8>> {
    if !is_boundary(boundary) {
        return None;
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body.strip_prefix(b"--")?.strip_prefix(boundary)?;
    loop {
        rest = match after_delimiter(rest)? {
            Delimited::Closed => return Some(out),
            Delimited::Part(rest) => rest,
        };
        let (part, after) = split_at_delimiter(rest, boundary)?;
        put_part(&mut out, part)?;
        rest = after;
    }
}

/// Quotes and control characters are in no boundary; with a line break in one, finding it would not be linear. A space
/// at its end could not be told from padding.
fn is_boundary(boundary: &[u8]) -> bool {
    let fits = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) && boundary.last() != Some(&b' ');
    fits && boundary.iter().all(|&byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
}

enum Delimited<'a> {
    /// That was the last delimiter, and nothing follows it.
    Closed,
    /// A part begins.
    Part(&'a [u8]),
}

fn after_delimiter(rest: &[u8]) -> Option<Delimited<'_>> {
    if let Some(rest) = rest.strip_prefix(b"--") {
        let rest = without_padding(rest);
        return (rest.is_empty() || rest == b"\r\n").then_some(Delimited::Closed);
    }
    without_padding(rest).strip_prefix(b"\r\n").map(Delimited::Part)
}

fn without_padding(mut rest: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', tail @ ..] = rest {
        rest = tail;
    }
    rest
}

/// Splits at the next line break, two dashes and the boundary; none also where the break is a bare line feed, which
/// some servers take for one. No break is inside a delimiter, so a failed try is never read twice.
fn split_at_delimiter<'a>(text: &'a [u8], boundary: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut from = 0;
    loop {
        let feed = from + text[from..].iter().position(|&byte| byte == b'\n')?;
        from = feed + 1;
        if let Some(after) = text[from..].strip_prefix(b"--").and_then(|rest| rest.strip_prefix(boundary)) {
            return text[..feed].strip_suffix(b"\r").map(|part| (part, after));
        }
    }
}

fn put_part(out: &mut Vec<u8>, part: &[u8]) -> Option<()> {
    let mut headers = Headers::default();
    let mut rest = part;
    let content = loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, after) = (&rest[..end], &rest[end + 2..]);
        if line.is_empty() {
            break after;
        }
        headers.read(line)?;
        rest = after;
    };
    put(out, headers.name?);
    put_optional(out, headers.filename);
    put_optional(out, headers.filename_extended);
    put_optional(out, headers.content_type);
    put(out, content);
    Some(())
}

/// What counts of a part's headers.
#[derive(Default)]
struct Headers<'a> {
    name: Option<&'a [u8]>,
    filename: Option<&'a [u8]>,
    /// `filename*`, the spelling with a charset.
    filename_extended: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
}

impl<'a> Headers<'a> {
    fn read(&mut self, line: &'a [u8]) -> Option<()> {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if !media::is_token(name) || value.contains(&b'\r') || value.contains(&b'\n') {
            return None;
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            return self.read_disposition(value);
        }
        if name.eq_ignore_ascii_case(b"content-type") {
            return set(&mut self.content_type, value);
        }
        // Under an encoding the bytes are not the content. Both are rare enough for its bytes.
        let plain = [&b"7bit"[..], b"8bit", b"binary"].iter().any(|plain| value.eq_ignore_ascii_case(plain));
        let is_encoded = (!plain && name.eq_ignore_ascii_case(b"content-transfer-encoding"))
            || name.eq_ignore_ascii_case(b"content-encoding");
        (!is_encoded).then_some(())
    }

    fn read_disposition(&mut self, value: &'a [u8]) -> Option<()> {
        if !media::essence(value).eq_ignore_ascii_case(b"form-data") {
            return None;
        }
        for parameter in media::parameters(value) {
            let (name, value) = parameter?;
            if name.eq_ignore_ascii_case(b"name") {
                set(&mut self.name, value)?;
            } else if name.eq_ignore_ascii_case(b"filename") {
                set(&mut self.filename, value)?;
            } else if name.eq_ignore_ascii_case(b"filename*") {
                set(&mut self.filename_extended, value)?;
            } else {
                // Some services read `name*` or a continuation, `name*0`, in place of the name.
                return None;
            }
        }
        Some(())
    }
}

/// A second value would leave it open which of them counts.
fn set<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of two parts, written with `boundary`.
    fn body(boundary: &str, note: &str, file: &str) -> String {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\n{note}\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\n\
             Content-Type: image/png\r\n\r\n{file}\r\n--{boundary}--\r\n"
        )
    }

    fn form(body: &str, boundary: &str) -> Option<Vec<u8>> {
        canonical(body.as_bytes(), boundary.as_bytes())
    }

    /// F03
    #[test]
    fn the_boundary_does_not_count_and_the_content_does() {
        let sent = form(&body("one", "hi", "\u{1}\r\n--on\r\r\n"), "one");
        assert!(sent.is_some());
        assert_eq!(sent, form(&body("other", "hi", "\u{1}\r\n--on\r\r\n"), "other"));
        assert_ne!(sent, form(&body("one", "hi", "\u{1}\r\n--on\r\r\n\r\n"), "one"));
        assert_ne!(sent, form(&body("one", "ho", "\u{1}\r\n--on\r\r\n"), "one"));
    }

    /// F03
    #[test]
    fn names_file_names_and_types_count_and_other_headers_do_not() {
        let sent = body("b", "hi", "x");
        let same = |from: &str, to: &str| {
            assert!(sent.contains(from));
            form(&sent.replace(from, to), "b") == form(&sent, "b")
        };
        assert!(!same("name=\"note\"", "name=\"mote\""));
        assert!(!same("a.png", "b.png"));
        assert!(!same("; filename=\"a.png\"", ""));
        assert!(!same("; filename=\"a.png\"", "; filename=\"\""));
        assert!(!same("a.png\"", "a.png\"; filename*=UTF-8''%C3%A9"));
        assert!(!same("image/png", "image/gif"));
        assert!(!same("Content-Type: image/png\r\n", ""));
        assert!(same("name=\"note\"", "name=note"));
        assert!(same("Content-Disposition", "content-disposition"));
        assert!(same("image/png\r\n", "image/png\r\nContent-Length: 1\r\n"));
        assert!(same("--b\r\n", "--b \t\r\n"));
        assert!(same("--b--\r\n", "--b--"));
    }

    /// F03
    #[test]
    fn the_order_of_parts_counts() {
        let part = |name: &str| format!("--b\r\nContent-Disposition: form-data; name={name}\r\n\r\n1\r\n");
        let sent = format!("{}{}--b--", part("x"), part("y"));
        assert_ne!(
            form(&sent, "b").unwrap(),
            form(&format!("{}{}--b--", part("y"), part("x")), "b").unwrap()
        );
    }

    /// F03: whatever bytes a part has, they do not run on into the next field or the next part.
    #[test]
    fn no_byte_moves_from_one_field_or_part_into_the_next() {
        let part = |head: &str, content: &str| {
            format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
        };
        let of = |parts: &[String]| form(&format!("{}--b--", parts.concat()), "b").unwrap();
        // A length is eight bytes, and the three optional fields of a part that has none of them are three more.
        let length = |count: u8| format!("\0\0\0\0\0\0\0{}", char::from(count));
        let absent = "\0\0\0";
        let two = of(&[part("name=x", "1"), part("name=y", "2")]);
        assert_ne!(two, of(&[part("name=x", &format!("1{}y{absent}2", length(1)))]), "two parts and one");
        assert_ne!(two, of(&[part("name=x", &format!("1y{absent}2"))]), "two parts and one");
        let named = format!("name=\"x{absent}{}\"", length(11));
        let content = format!("{absent}{}", length(0));
        assert_ne!(of(&[part("name=x", &content)]), of(&[part(&named, "")]), "a name and a content");
        let file = |filename: &str, content_type: &str| {
            let head = format!("name=x; filename=\"{filename}\"\r\nContent-Type: {content_type}");
            of(&[part(&head, "")])
        };
        // The absent `filename*` and the mark of the content type that is there.
        assert_ne!(file("a", "b\0\u{1}c"), file("a\0\u{1}b", "c"), "a file name and a content type");
    }

    /// F05
    #[test]
    fn a_malformed_body_has_no_canonical_form() {
        let sent = body("b", "hi", "x");
        for (from, to) in [
            ("--b--", ""),
            ("--b--\r\n", "--b--\r\nmore"),
            ("--b--\r\n", "--b-\r\n"),
            ("hi\r\n--b", "hi\r\n--bc"),
            ("hi\r\n--b", "hi\n--b"),
            ("name=\"note\"", ""),
            ("name=\"note\"", "name=\"note"),
            ("name=\"note\"", "name=\"note\"; name=\"x\""),
            ("form-data; name=\"note\"", "attachment; name=\"note\""),
            ("Content-Type: image/png", "Content-Type: image/png\r\nContent-Type: image/png"),
            ("Content-Type: image/png", "Content-Transfer-Encoding: base64"),
            ("Content-Type: image/png", "Content-Type: image/png\r\n folded"),
            ("Content-Type: image/png", "Content-Type image/png"),
            ("\r\n\r\nhi", "\r\nhi"),
        ] {
            assert!(sent.contains(from));
            assert_eq!(form(&sent.replacen(from, to, 1), "b"), None, "{to:?} for {from:?}");
        }
        assert_eq!(form(&format!("preamble\r\n{sent}"), "b"), None);
        for boundary in ["", "c", "b\"", "b ", &"b".repeat(71)] {
            assert_eq!(form(&sent, boundary), None, "{boundary:?}");
        }
    }

    /// F03: a form without fields is a form.
    #[test]
    fn an_empty_form_has_a_canonical_form() {
        assert_eq!(form("--b--\r\n", "b"), Some(Vec::new()));
    }
}
