//! The rows of an export by the record they belong to: 32 bytes a row.

use onlyonce::record::Id;

/// What the provider says became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Happened,
    Declined,
    /// Neither, such as "pending".
    Other,
}

/// One row. The first half of a record's id is enough: ids are SHA-256.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    id: [u8; 16],
    /// Where it begins in the file.
    pub(super) at: u64,
    /// Its number, from 1.
    pub(super) number: u32,
    pub(super) outcome: Outcome,
    is_matched: bool,
}

impl Row {
    pub(super) fn new(id: Id, at: u64, number: u32, outcome: Outcome) -> Self {
        Self { id: half(id), at, number, outcome, is_matched: false }
    }
}

fn half(id: Id) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&id.0[..16]);
    half
}

/// All usable rows, in the order of ids and then of the file.
#[derive(Debug)]
pub(super) struct Rows(Vec<Row>);

impl Rows {
    pub(super) fn new(mut rows: Vec<Row>) -> Self {
        rows.sort_unstable_by_key(|row| (row.id, row.number));
        Self(rows)
    }

    /// The rows of a record, which from now on count as found here.
    pub(super) fn take(&mut self, id: Id) -> &[Row] {
        let id = half(id);
        let from = self.0.partition_point(|row| row.id < id);
        let count = self.0[from..].iter().take_while(|row| row.id == id).count();
        let found = &mut self.0[from..from + count];
        found.iter_mut().for_each(|row| row.is_matched = true);
        found
    }

    /// Rows of which there is no record here, those of one id together.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = &[Row]> {
        self.0.chunk_by(|one, two| one.id == two.id).filter(|rows| !rows[0].is_matched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U08: with the growth of the list, at most three times this is held at once: less than 100 bytes a row.
    #[test]
    fn a_row_takes_32_bytes() {
        assert_eq!(size_of::<Row>(), 32);
    }

    #[test]
    fn rows_are_found_by_their_record_and_left_where_there_is_none() {
        let id = |byte: u8| Id([byte; 32]);
        let row = |byte: u8, number: u32| Row::new(id(byte), 0, number, Outcome::Happened);
        let mut rows = Rows::new(vec![row(3, 1), row(1, 2), row(3, 3), row(2, 4), row(3, 5)]);
        let numbers = |rows: &[Row]| rows.iter().map(|row| row.number).collect::<Vec<_>>();
        assert_eq!(numbers(rows.take(id(3))), [1, 3, 5]);
        assert_eq!(numbers(rows.take(id(9))), Vec::<u32>::new());
        assert_eq!(numbers(rows.take(id(0))), Vec::<u32>::new());
        assert_eq!(rows.unmatched().map(numbers).collect::<Vec<_>>(), [[2], [4]]);
    }
}
