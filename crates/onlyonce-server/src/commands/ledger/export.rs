//! A provider's export, read as a stream: CSV (RFC 4180) or JSON Lines.
//!
//! 1. Which of both it is, the first byte says: `{` is JSON Lines. Commas, semicolons and tabs separate CSV; the separator is the one
//!    by which the first line has the columns that are asked for.
//! 2. A row is read again by where it begins, so that its texts need not be kept.
//! 3. Nothing is guessed: a column that is missing or there twice is an error, and a row with more or fewer fields than the first line is
//!    unreadable.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use csv::{ByteRecord, Position, ReaderBuilder};
use serde_json::Value;

use super::super::failure::Failure;
use super::super::text::clean;

/// The longest row: a quote that is never closed makes one of all the rest.
const ROW_BYTES_MAX: u64 = 16 << 20;
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];
const BOM: &[u8] = b"\xef\xbb\xbf";
/// How many columns an error names.
const COLUMNS_NAMED: usize = 30;

/// A column that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Token,
    Scope,
    Key,
    Id,
    Outcome,
    Time,
}

impl Field {
    /// The flag that names it.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Token => "--token-column",
            Self::Scope => "--scope-column",
            Self::Key => "--key-column",
            Self::Id => "--id",
            Self::Outcome => "--outcome",
            Self::Time => "--time",
        }
    }
}

/// What is asked for of a row, each with the name that the arguments give it.
pub(super) type Wanted = Vec<(Field, String)>;

/// The cells of a row that were asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells(Vec<(Field, String)>);

impl Cells {
    /// None where the row has nothing there.
    pub(super) fn get(&self, field: Field) -> Option<&str> {
        self.0.iter().find(|(of, _)| *of == field).map(|(_, text)| &**text).filter(|text| !text.is_empty())
    }
}

/// A row as it was read.
pub(super) struct Line {
    /// Where it begins.
    pub(super) at: u64,
    /// What was asked for, or why the row cannot be read.
    pub(super) cells: Result<Cells, String>,
}

/// An export that has every column that is asked for.
pub(super) struct Export {
    file: Arc<File>,
    name: String,
    shape: Shape,
    opened: Metadata,
}

enum Shape {
    Csv {
        separator: u8,
        /// How many fields the first line has.
        fields: usize,
        columns: Vec<(Field, usize)>,
    },
    Lines {
        /// Where the first line begins.
        begins: u64,
        pointers: Wanted,
    },
}

impl Export {
    pub(super) fn open(path: &Path, wanted: Wanted) -> Result<Self, Failure> {
        let name = clean(&path.display().to_string());
        let wrong = |told: String| Failure::new("export_unreadable", told);
        let cannot = |error: io::Error| wrong(format!("\"{name}\" cannot be read: {error}"));
        let opened = path.metadata().map_err(cannot)?;
        if !opened.is_file() {
            return Err(wrong(format!(
                "\"{name}\" is not a file; an export is read more than once, so save it as one"
            )));
        }
        let file = Arc::new(File::open(path).map_err(cannot)?);
        let mut start = Vec::new();
        (&*file).take(4096).read_to_end(&mut start).map_err(cannot)?;
        let shape = match kind(&start) {
            Kind::Empty => {
                return Err(wrong(format!("\"{name}\" is empty: it has no line with the names of columns")));
            }
            Kind::NoText(what) => {
                return Err(wrong(format!("\"{name}\" is {what}; export it as CSV or JSON Lines, in UTF-8")));
            }
            Kind::Array => {
                return Err(wrong(format!(
                    "\"{name}\" is one JSON array; write one object per line, such as with jq -c '.[]'"
                )));
            }
            Kind::Lines(begins) => lines(begins, wanted)?,
            Kind::Csv => csv_of(&file, &name, &wanted)?,
        };
        Ok(Self { file, name, shape, opened })
    }

    /// Every row, from the first.
    pub(super) fn rows(&self) -> Result<Reading<'_>, Failure> {
        let source = match &self.shape {
            Shape::Csv { separator, .. } => {
                let (mut reader, left) = csv_reader(&self.file, *separator, 0)?;
                // The names.
                let mut names = ByteRecord::new();
                read_record(&mut reader, &left, &mut names).map_err(|told| self.failed(&told))?;
                Source::Csv(Box::new(reader), left)
            }
            Shape::Lines { begins, .. } => Source::Lines(self.at(*begins)?, *begins),
        };
        Ok(Reading { export: self, source, record: ByteRecord::new() })
    }

    /// What was asked for of the row that begins there.
    pub(super) fn cells(&self, at: u64) -> Result<Cells, Failure> {
        let source = match &self.shape {
            Shape::Csv { separator, .. } => {
                let (reader, left) = csv_reader(&self.file, *separator, at)?;
                Source::Csv(Box::new(reader), left)
            }
            Shape::Lines { .. } => Source::Lines(self.at(at)?, at),
        };
        let mut reading = Reading { export: self, source, record: ByteRecord::new() };
        match reading.next()?.map(|read| read.cells) {
            Some(Ok(cells)) => Ok(cells),
            Some(Err(_)) | None => Err(self.failed("it was changed while it was read; try again")),
        }
    }

    /// Refuses to have read a file that somebody writes.
    pub(super) fn is_unchanged(&self) -> Result<(), Failure> {
        let now = self.file.metadata()?;
        if now.len() == self.opened.len() && now.modified().ok() == self.opened.modified().ok() {
            return Ok(());
        }
        Err(self.failed("it was changed while it was read; try again once it is complete"))
    }

    /// Notes which pointers a line has.
    pub(super) fn note(&self, cells: &Cells, seen: &mut Vec<Field>) {
        if let Shape::Lines { pointers, .. } = &self.shape
            && seen.len() < pointers.len()
        {
            seen.extend(cells.0.iter().map(|(field, _)| *field));
            seen.sort_unstable();
            seen.dedup();
        }
    }

    /// Refuses pointers that no line has.
    pub(super) fn has_all(&self, seen: &[Field]) -> Result<(), Failure> {
        let Shape::Lines { pointers, .. } = &self.shape else { return Ok(()) };
        let Some((field, pointer)) = pointers.iter().find(|(field, _)| !seen.contains(field)) else {
            return Ok(());
        };
        let told = format!("no line of \"{}\" has {pointer} of {}", self.name, field.flag());
        Err(Failure::new("column_missing", told))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.opened.len()
    }

    /// Something is wrong with the whole of it.
    pub(super) fn failed(&self, told: &str) -> Failure {
        Failure::new("export_unreadable", format!("\"{}\": {told}", self.name))
    }

    fn at(&self, begins: u64) -> Result<BufReader<Arc<File>>, Failure> {
        let mut file = self.file.clone();
        file.seek(SeekFrom::Start(begins))?;
        Ok(BufReader::new(file))
    }
}

enum Kind {
    Empty,
    NoText(&'static str),
    Array,
    /// JSON Lines, which begin there.
    Lines(u64),
    Csv,
}

fn kind(start: &[u8]) -> Kind {
    for (magic, what) in [
        (&b"\xff\xfe"[..], "in UTF-16"),
        (b"\xfe\xff", "in UTF-16"),
        (b"PK\x03\x04", "a ZIP archive or a spreadsheet"),
        (b"\x1f\x8b", "compressed"),
        (b"SQLite format 3\0", "a database"),
    ] {
        if start.starts_with(magic) {
            return Kind::NoText(what);
        }
    }
    let bom = if start.starts_with(BOM) { BOM.len() } else { 0 };
    let Some(space) = start[bom..].iter().position(|byte| !byte.is_ascii_whitespace()) else {
        return Kind::Empty;
    };
    match start[bom + space] {
        b'{' => Kind::Lines((bom + space) as u64),
        b'[' => Kind::Array,
        0 => Kind::NoText("no text"),
        _ => Kind::Csv,
    }
}

fn lines(begins: u64, wanted: Wanted) -> Result<Shape, Failure> {
    for (field, pointer) in &wanted {
        if !pointer.starts_with('/') {
            return Err(Failure::arguments(format!(
                "{} \"{pointer}\" is not a JSON Pointer, but the file is JSON Lines; write it like /{pointer}",
                field.flag()
            )));
        }
    }
    Ok(Shape::Lines { begins, pointers: wanted })
}

/// The separator by which the first line has the most of what is asked for.
fn csv_of(file: &Arc<File>, name: &str, wanted: &Wanted) -> Result<Shape, Failure> {
    let mut best: Option<(usize, usize, u8, Vec<String>)> = None;
    for separator in SEPARATORS {
        let (mut reader, left) = csv_reader(file, separator, 0)?;
        let mut record = ByteRecord::new();
        let failed = |told: String| Failure::new("export_unreadable", format!("\"{name}\": {told}"));
        read_record(&mut reader, &left, &mut record).map_err(failed)?;
        let names: Vec<_> =
            record.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        let found = wanted.iter().filter(|(_, column)| names.contains(column)).count();
        if best.as_ref().is_none_or(|(most, fields, ..)| (*most, *fields) < (found, names.len())) {
            best = Some((found, names.len(), separator, names));
        }
    }
    let (_, fields, separator, names) = best.expect("there are separators");
    let mut columns = Vec::new();
    for (field, column) in wanted {
        let mut places = names.iter().enumerate().filter(|(_, name)| *name == column).map(|(place, _)| place);
        let flag = field.flag();
        match (places.next(), places.next()) {
            (Some(place), None) => columns.push((*field, place)),
            (Some(_), Some(_)) => {
                let told = format!(
                    "column \"{column}\" of {flag} is more than once in \"{name}\"; rename one of them"
                );
                return Err(Failure::new("column_missing", told));
            }
            (None, _) => {
                let told =
                    format!("column \"{column}\" of {flag} is not in \"{name}\"; it has {}", named(&names));
                return Err(Failure::new("column_missing", told));
            }
        }
    }
    Ok(Shape::Csv { separator, fields, columns })
}

fn named(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(COLUMNS_NAMED).map(|name| format!("\"{name}\"")).collect();
    let more = if names.len() > COLUMNS_NAMED { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

type CsvReader = csv::Reader<Bounded<Arc<File>>>;

fn csv_reader(file: &Arc<File>, separator: u8, at: u64) -> Result<(CsvReader, Rc<Cell<u64>>), Failure> {
    let left = Rc::new(Cell::new(ROW_BYTES_MAX));
    let bounded = Bounded { inner: file.clone(), left: left.clone() };
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(bounded);
    let mut position = Position::new();
    position.set_byte(at);
    reader.seek_raw(SeekFrom::Start(at), position).map_err(|error| Failure::from(io::Error::from(error)))?;
    Ok((reader, left))
}

/// The next record; false at the end.
fn read_record(reader: &mut CsvReader, left: &Cell<u64>, record: &mut ByteRecord) -> Result<bool, String> {
    left.set(ROW_BYTES_MAX);
    reader.read_byte_record(record).map_err(|error| io::Error::from(error).to_string())
}

/// Reads at most so much of one row.
struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(too_long());
        }
        let read = self.inner.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read as u64));
        Ok(read)
    }
}

impl<R: Seek> Seek for Bounded<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

fn too_long() -> io::Error {
    let told = format!("a row is longer than {} MiB; is a quote left open?", ROW_BYTES_MAX >> 20);
    io::Error::new(io::ErrorKind::InvalidData, told)
}

enum Source {
    Csv(Box<CsvReader>, Rc<Cell<u64>>),
    /// With the place of the next line.
    Lines(BufReader<Arc<File>>, u64),
}

/// Rows, one after the other.
pub(super) struct Reading<'a> {
    export: &'a Export,
    source: Source,
    record: ByteRecord,
}

impl Reading<'_> {
    /// The next row; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line>, Failure> {
        match (&mut self.source, &self.export.shape) {
            (Source::Csv(reader, left), Shape::Csv { fields, columns, .. }) => {
                match read_record(reader, left, &mut self.record) {
                    Ok(false) => Ok(None),
                    Ok(true) => {
                        let at = self.record.position().map_or(0, Position::byte);
                        Ok(Some(Line { at, cells: csv_cells(&self.record, *fields, columns) }))
                    }
                    Err(told) => Err(self.export.failed(&told)),
                }
            }
            (Source::Lines(reader, next), Shape::Lines { pointers, .. }) => loop {
                let at = *next;
                let mut line = Vec::new();
                let read = reader.take(ROW_BYTES_MAX + 1).read_until(b'\n', &mut line)? as u64;
                if read > ROW_BYTES_MAX {
                    return Err(self.export.failed(&too_long().to_string()));
                }
                if read == 0 {
                    return Ok(None);
                }
                *next += read;
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(Line { at, cells: json_cells(&line, pointers) }));
                }
            },
            (Source::Csv(..) | Source::Lines(..), _) => unreachable!("a source is made by its shape"),
        }
    }
}

fn csv_cells(record: &ByteRecord, fields: usize, columns: &[(Field, usize)]) -> Result<Cells, String> {
    if record.len() != fields {
        return Err(format!("it has {} fields, but the first line has {fields}", record.len()));
    }
    let mut cells = Vec::with_capacity(columns.len());
    for (field, place) in columns {
        let text = std::str::from_utf8(&record[*place]);
        let text = text.map_err(|_| format!("the column of {} is not in UTF-8", field.flag()))?;
        cells.push((*field, text.to_owned()));
    }
    Ok(Cells(cells))
}

fn json_cells(line: &[u8], pointers: &Wanted) -> Result<Cells, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("it is not JSON: {error}"))?;
    if !value.is_object() {
        return Err("it is not a JSON object".to_owned());
    }
    let mut cells = Vec::with_capacity(pointers.len());
    for (field, pointer) in pointers {
        let text = match value.pointer(pointer) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Array(_) | Value::Object(_)) => {
                return Err(format!("{pointer} of {} is not a string", field.flag()));
            }
        };
        cells.push((*field, text));
    }
    Ok(Cells(cells))
}
