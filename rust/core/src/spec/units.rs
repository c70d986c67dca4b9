//! Sizes and times as people write them.

/// Unit names of a size and their bytes. Names with an `i` are binary, the others decimal.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Unit names of a time and their seconds.
const TIME_UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

/// What a size may look like, for error messages.
pub(super) const SIZE_FORM: &str =
    "a size such as \"24GiB\" (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)";
/// What a time may look like, for error messages.
pub(super) const TIME_FORM: &str = "seconds or a time such as \"2min\" (ms, s, min, h)";

/// `24GiB`, `1.5 GB`, `4096` in bytes.
pub(super) fn size_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let (_, bytes) = match unit {
        "" => SIZE_UNITS[0],
        _ => *SIZE_UNITS.iter().find(|(name, _)| *name == unit)?,
    };
    let size = number * bytes as f64;
    (size < u64::MAX as f64 && size.fract() == 0.0).then_some(size as u64)
}

/// `30s`, `2 min`, `0.5h` in seconds.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    let (_, seconds) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number * seconds)
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("24GiB", Some(25_769_803_776)),
            ("512MB", Some(512_000_000)),
            ("1.5 GiB", Some(1_610_612_736)),
            ("4096", Some(4096)),
            ("1kB", Some(1000)),
            ("0.3B", None),
            ("1gib", None),
            ("GiB", None),
            ("-1GiB", None),
            ("", None),
        ] {
            assert_eq!(size_bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("30s", Some(30.0)),
            ("2 min", Some(120.0)),
            ("1.5h", Some(5400.0)),
            ("500ms", Some(0.5)),
            ("30", None),
            ("2m", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
