//! As much of RESP2 and RESP3 as it takes to cut a stream into whole values.

/// The length of the first value in `bytes`, or `None` while more of it is to come.
///
/// A value is a command, a reply or a push. A line that begins with none of RESP's signs is an
/// inline command. Streamed values (`$?`) are unknown here: Redis and Valkey send none.
pub(super) fn value_len(bytes: &[u8]) -> Option<usize> {
    let (line, mut end) = first_line(bytes)?;
    let (sign, number) = line.split_first()?;
    let count = || usize::try_from(decimal(number)).unwrap_or(0); // -1 is null: nothing follows
    let values = match sign {
        b'$' | b'=' | b'!' if decimal(number) >= 0 => {
            end += count() + 2;
            0
        }
        b'*' | b'~' | b'>' => count(),
        b'%' => 2 * count(),
        b'|' => 2 * count() + 1, // attributes of the value that follows
        _ => 0,
    };
    for _ in 0..values {
        end += value_len(bytes.get(end..)?)?;
    }
    (end <= bytes.len()).then_some(end)
}

/// What a command or a push begins with, in lower case: its name or kind.
pub(super) fn first_word(value: &[u8]) -> String {
    let word = match value.first() {
        Some(b'*' | b'>') => value.split(|byte| *byte == b'\n').nth(2),
        _ => value.split(u8::is_ascii_whitespace).next(),
    };
    String::from_utf8_lossy(word.unwrap_or_default()).trim_end().to_lowercase()
}

/// How many words a command has, its name included.
pub(super) fn word_count(command: &[u8]) -> usize {
    let count = first_line(command).map_or(1, |(line, _)| decimal(line.get(1..).unwrap_or(b"")));
    usize::try_from(count).unwrap_or(1)
}

/// The first line without its end, and where the next one begins.
fn first_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

fn decimal(text: &[u8]) -> i64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":12\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"~1\r\n+a\r\n",
        b"%1\r\n+key\r\n*2\r\n:1\r\n:2\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$2\r\nok\r\n",
        b"=6\r\ntxt:hi\r\n",
        b"PING\r\n",
    ];

    #[test]
    fn each_value_ends_where_the_next_begins() {
        for value in VALUES {
            let followed = [value, &b"+next\r\n"[..]].concat();
            assert_eq!(value_len(&followed), Some(value.len()), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn a_value_is_not_whole_before_its_last_byte() {
        for value in VALUES {
            for length in 0..value.len() {
                assert_eq!(value_len(&value[..length]), None, "{}", value.escape_ascii());
            }
        }
    }

    #[test]
    fn commands_and_pushes_say_what_they_are() {
        assert_eq!(first_word(b"*2\r\n$3\r\nGet\r\n$1\r\nx\r\n"), "get");
        assert_eq!(first_word(b">2\r\n$9\r\nsubscribe\r\n:1\r\n"), "subscribe");
        assert_eq!(first_word(b"PING\r\n"), "ping");
        assert_eq!(word_count(b"*2\r\n$3\r\nGet\r\n$1\r\nx\r\n"), 2);
    }
}
