//! Finding commits in what passes between a client and its server.

use std::mem;

/// PostgreSQL's answer to a commit, in full: `CommandComplete`, its length, and the tag.
const DONE: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

/// Longer than what must be seen together to know a request for a commit.
const TAIL: usize = 64;

/// Whose commit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Postgres,
    MySql,
}

/// What a client sends.
#[derive(Debug, Default)]
pub(super) struct Requests {
    // The end of what was seen, since a message may come in parts.
    tail: Vec<u8>,
}

impl Requests {
    /// Whether these bytes complete a plain query `COMMIT`, in whatever case. A commit by a prepared statement does
    /// not carry its text, and is known by PostgreSQL's answer only.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Option<Protocol> {
        let seen = self.tail.len();
        self.tail.extend_from_slice(bytes);
        let found = self.tail.windows(6).enumerate().find_map(|(at, word)| {
            let is_new = at + word.len() > seen;
            (is_new && word.eq_ignore_ascii_case(b"commit")).then(|| protocol(&self.tail[..at])).flatten()
        });
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        found
    }
}

/// Whose query begins after these bytes.
fn protocol(before: &[u8]) -> Option<Protocol> {
    match before {
        // A simple query and its length, and room for `COMMIT;`.
        [.., b'Q', 0, 0, 0, 11..=13] => Some(Protocol::Postgres),
        // The length, the number of the packet, and COM_QUERY.
        [.., 7..=9, 0, 0, 0, 3] => Some(Protocol::MySql),
        // After other statements in one query: `select 1; commit`.
        [.., b';', b' '] => begun_query(before),
        _ => None,
    }
}

/// Whose short query begins with the text that these bytes end with.
fn begun_query(before: &[u8]) -> Option<Protocol> {
    before.windows(5).enumerate().find_map(|(at, head)| {
        let text = &before[at + head.len()..];
        let (length, protocol) = match *head {
            [b'Q', 0, 0, 0, length] => (length, Protocol::Postgres),
            [length, 0, 0, 0, 3] => (length, Protocol::MySql),
            _ => return None,
        };
        let is_text = text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        (is_text && usize::from(length) > text.len()).then_some(protocol)
    })
}

/// What PostgreSQL answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    held: Vec<u8>,
}

impl Answers {
    /// What may go on to the client, and whether the answer to a commit comes next: it is held from there on. A
    /// part of it at the end is held too, until it is known what it becomes. Nothing is held when nobody looks.
    pub(super) fn look(&mut self, bytes: &[u8], is_armed: bool) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(bytes);
        if !is_armed {
            return (self.release(), false);
        }
        let found = self.held.windows(DONE.len()).position(|window| window == DONE);
        let end = found.unwrap_or_else(|| self.held.len() - self.begun());
        (self.held.drain(..end).collect(), found.is_some())
    }

    /// What was held.
    pub(super) fn release(&mut self) -> Vec<u8> {
        mem::take(&mut self.held)
    }

    /// How many of the last bytes may be the begin of an answer.
    fn begun(&self) -> usize {
        (1..DONE.len()).rev().find(|count| self.held.ends_with(&DONE[..*count])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_known_by_its_frame_and_not_by_its_letters() {
        let cases: [(&[u8], Option<Protocol>); 11] = [
            (b"Q\0\0\0\x0bCOMMIT\0", Some(Protocol::Postgres)),
            (b"Q\0\0\0\x0ccommit;\0", Some(Protocol::Postgres)),
            (b"Q\0\0\0\x0aBEGIN\0Q\0\0\0\x0bCOMMIT\0", Some(Protocol::Postgres)),
            (b"Q\0\0\0\x1cselect 1; commit; begin\0", Some(Protocol::Postgres)),
            (b"\x07\0\0\0\x03COMMIT", Some(Protocol::MySql)),
            (b"\x24\0\0\0\x03release savepoint pillarbox; commit", Some(Protocol::MySql)),
            (b"\x07\0\0\x01\0\0\0\x02\0\0\0\x13\0\0\0\x03select 1; commit", Some(Protocol::MySql)),
            (b"\x23\0\0\0\x16select '\0\0\0\x03\0\0\x03; commit' from t", None),
            (b"Q\0\0\0\x1eselect committed_at from t\0", None),
            (b"\x1a\0\0\0\x03select committed_at from t", None),
            (b"P\0\0\0\x10s1\0COMMIT\0\0\0", None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Requests::default().look(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_commit_in_parts_is_found_once() {
        let message = b"Q\0\0\0\x0bCOMMIT\0";
        for cut in 1..11 {
            let mut requests = Requests::default();
            let found = [&message[..cut], &message[cut..], b"Q\0\0\0\x0aBEGIN\0"].map(|part| requests.look(part));
            assert_eq!(found.iter().flatten().count(), 1, "{cut}: {found:?}");
        }
    }

    #[test]
    fn what_stands_before_the_answer_passes_and_the_answer_is_held_however_it_is_cut() {
        let stream = [b"D\0\0\0\x08row!", DONE, b"Z\0\0\0\x05I"].concat();
        for cut in 0..stream.len() {
            let mut answers = Answers::default();
            let mut passed = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                let (pass, is_commit) = answers.look(part, true);
                passed.extend(pass);
                if is_commit {
                    break;
                }
            }
            assert_eq!(passed, b"D\0\0\0\x08row!", "{cut}");
        }
    }

    #[test]
    fn nothing_is_held_when_nobody_looks() {
        let mut answers = Answers::default();
        assert_eq!(answers.look(&DONE[..4], true), (Vec::new(), false));
        assert_eq!(answers.look(&DONE[4..], false), (DONE.to_vec(), false));
    }
}
