//! One tree of values for TOML and JSON, and a walker over it that always knows the path of a key.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{Level, units};
use crate::error::{Error, Result};

/// A value as TOML or JSON has it. Tables keep the order in which they were read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

/// The key under which the `toml` crate hands out a date.
const TOML_DATE: &str = "$__toml_private_datetime";

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Node, E> {
        Ok(Node::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Node>()? {
            if key == TOML_DATE {
                return Ok(value);
            }
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("the key `{key}` is there twice")));
            }
            entries.push((key, value));
        }
        Ok(Node::Table(entries))
    }
}

impl Node {
    /// The name of the value's type, for people.
    fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number with a fraction",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }

    /// The value as it was written, shortened; containers by their type alone.
    fn shown(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(value) if value.chars().count() > 60 => {
                format!("\"{}…\"", value.chars().take(60).collect::<String>())
            }
            Self::Text(value) => format!("\"{value}\""),
            Self::List(_) | Self::Table(_) => self.type_name().to_owned(),
        }
    }
}

/// A table of the spec, whose keys have been checked.
pub(super) struct Table<'a> {
    path: String,
    entries: &'a [(String, Node)],
}

/// A value of the spec and the path of its key.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) node: &'a Node,
}

impl<'a> Table<'a> {
    /// The value of `key`, when there is one. JSON's null is the same as leaving the key out.
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        self.fields().find(|(name, _)| *name == key).map(|(_, field)| field)
    }

    /// All keys with their values.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        self.entries
            .iter()
            .filter(|(_, node)| *node != Node::Null)
            .map(|(key, node)| (key.as_str(), Field { path: join(&self.path, key), node }))
    }

    /// The path that `key` has or would have here.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Checks that only the `allowed` keys are here; `elsewhere` gives a hint for those that belong
    /// to another table.
    pub(super) fn check_keys(
        &self,
        allowed: &[&str],
        elsewhere: impl Fn(&str) -> Option<String>,
    ) -> Result<()> {
        for (key, field) in self.fields() {
            if allowed.contains(&key) {
                continue;
            }
            let error = Error::spec(format!(
                "`{}` is not a known key (allowed: {})",
                field.path,
                allowed.join(", ")
            ));
            return Err(match near_miss(key, allowed.iter().copied()) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => match elsewhere(key) {
                    Some(hint) => error.hint(hint),
                    None => error,
                },
            });
        }
        Ok(())
    }

    /// The values of `key`, a scalar or a list of distinct levels; empty when there is none.
    pub(super) fn levels<T: PartialEq>(
        &self,
        key: &str,
        read: impl Fn(&Field<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.get(key).map_or_else(|| Ok(Vec::new()), |field| field.levels(read))
    }

    /// What `read` makes of the value of `key`, when there is one.
    pub(super) fn value<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Field<'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.get(key).as_ref().map(read).transpose()
    }
}

impl<'a> Field<'a> {
    /// An error of this field: "`path` is VALUE, *complaint*".
    pub(super) fn error(&self, complaint: impl fmt::Display) -> Error {
        Error::spec(format!("`{}` is {}, {complaint}", self.path, self.node.shown()))
    }

    fn mismatch(&self, expected: &str) -> Error {
        match self.node {
            Node::List(_) | Node::Table(_) | Node::Null => {
                self.error(format!("but {expected} is expected"))
            }
            node => Error::spec(format!(
                "`{}` is {} ({}), but {expected} is expected",
                self.path,
                node.shown(),
                node.type_name()
            )),
        }
    }

    pub(super) fn table(&self) -> Result<Table<'a>> {
        match self.node {
            Node::Table(entries) => Ok(Table { path: self.path.clone(), entries }),
            _ => Err(self.mismatch("a table")),
        }
    }

    /// The tables of `[[key]]`, or the one of `[key]`.
    pub(super) fn tables(&self) -> Result<Vec<Table<'a>>> {
        match self.node {
            Node::List(items) if items.is_empty() => Err(Error::spec(format!(
                "`{}` is an empty list, but at least one table is expected",
                self.path
            ))),
            Node::List(_) => self.items()?.iter().map(Field::table).collect(),
            Node::Table(_) => Ok(vec![self.table()?]),
            _ => Err(self.mismatch("a table or a list of tables")),
        }
    }

    fn items(&self) -> Result<Vec<Field<'a>>> {
        match self.node {
            Node::List(items) => Ok(items
                .iter()
                .enumerate()
                .map(|(index, node)| Field { path: format!("{}[{index}]", self.path), node })
                .collect()),
            _ => Err(self.mismatch("a list")),
        }
    }

    pub(super) fn levels<T: PartialEq>(
        &self,
        read: impl Fn(&Field<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        if !matches!(self.node, Node::List(_)) {
            return Ok(vec![read(self)?]);
        }
        let mut levels = Vec::new();
        for item in self.items()? {
            let level = read(&item)?;
            if levels.contains(&level) {
                return Err(item.error("which is there twice"));
            }
            levels.push(level);
        }
        if levels.is_empty() {
            return Err(Error::spec(format!(
                "`{}` is an empty list, but at least one level is expected",
                self.path
            )));
        }
        Ok(levels)
    }

    /// The tables that a table of `keys` stands for whose values may be lists, those of the keys in
    /// `whole` left as they are: every combination of levels, each with the names of its own.
    pub(super) fn combinations(
        &self,
        keys: &[&str],
        whole: &[&str],
    ) -> Result<Vec<(Vec<Level>, Node)>> {
        let table = self.table()?;
        let mut tables = vec![(Vec::new(), Vec::new())];
        for (key, field) in keys.iter().filter_map(|key| Some((*key, table.get(key)?))) {
            let nodes = if whole.contains(&key) {
                vec![field.node.clone()]
            } else {
                field.levels(|level| Ok(level.node.clone()))?
            };
            let several = nodes.len() > 1;
            let mut next = Vec::new();
            for (levels, entries) in &tables {
                for node in &nodes {
                    let (mut levels, mut entries) = (Vec::clone(levels), Vec::clone(entries));
                    if several {
                        let level = Field { path: field.path.clone(), node };
                        levels.push((key.to_owned(), level.scalar()?));
                    }
                    entries.push((key.to_owned(), node.clone()));
                    next.push((levels, entries));
                }
            }
            tables = next;
        }
        Ok(tables.into_iter().map(|(levels, entries)| (levels, Node::Table(entries))).collect())
    }

    pub(super) fn text(&self) -> Result<String> {
        match self.node {
            Node::Text(text) => Ok(text.clone()),
            _ => Err(self.mismatch("text")),
        }
    }

    pub(super) fn texts(&self) -> Result<Vec<String>> {
        self.items()?.iter().map(Field::text).collect()
    }

    /// A name that goes into labels and file names.
    pub(super) fn name(&self) -> Result<String> {
        let text = self.text()?;
        if text.trim().is_empty() || text.contains('/') || text.chars().any(char::is_control) {
            return Err(
                self.error("but a name may not be empty nor hold `/` or control characters")
            );
        }
        Ok(text)
    }

    pub(super) fn absolute_path(&self) -> Result<std::path::PathBuf> {
        let path = std::path::PathBuf::from(self.text()?);
        if path.is_absolute() {
            Ok(path)
        } else {
            Err(self.error("but an absolute path is expected"))
        }
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        match self.node {
            Node::Bool(value) => Ok(*value),
            _ => Err(self.mismatch("true or false")),
        }
    }

    /// A whole number that fits into `T`.
    pub(super) fn integer<T: TryFrom<i128>>(&self) -> Result<T> {
        match self.node {
            Node::Integer(value) => T::try_from(*value).map_err(|_| {
                let excess = if *value < 0 { "not be negative" } else { "be smaller" };
                self.error(format!("but must {excess}"))
            }),
            _ => Err(self.mismatch("a whole number")),
        }
    }

    pub(super) fn number(&self) -> Result<f64> {
        match self.node {
            Node::Integer(value) => Ok(*value as f64),
            Node::Float(value) if value.is_finite() => Ok(*value),
            Node::Float(_) => Err(self.error("but a finite number is expected")),
            _ => Err(self.mismatch("a number")),
        }
    }

    /// A size in bytes: an integer, or text with a unit.
    pub(super) fn size_bytes(&self) -> Result<u64> {
        match self.node {
            Node::Integer(_) => self.integer(),
            Node::Text(text) => units::size_bytes(text)
                .ok_or_else(|| self.error(format!("but {} is expected", units::SIZE_FORM))),
            _ => Err(self.mismatch(units::SIZE_FORM)),
        }
    }

    /// A time in seconds: a number, or text with a unit.
    pub(super) fn seconds(&self) -> Result<f64> {
        match self.node {
            Node::Integer(_) | Node::Float(_) => self.number(),
            Node::Text(text) => units::seconds(text)
                .ok_or_else(|| self.error(format!("but {} is expected", units::TIME_FORM))),
            _ => Err(self.mismatch(units::TIME_FORM)),
        }
    }

    /// One of a closed set of words; `what` names the set: "kind of storage".
    pub(super) fn word<T: Copy>(&self, what: &str, words: &[(&str, T)]) -> Result<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let error =
            self.error(format!("which is not a known {what} (allowed: {})", allowed.join(", ")));
        Err(match near_miss(&text, allowed) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        })
    }

    /// A scalar as PostgreSQL writes it: booleans are `on` and `off`.
    pub(super) fn scalar(&self) -> Result<String> {
        match self.node {
            Node::Text(text) => Ok(text.clone()),
            Node::Bool(value) => Ok(if *value { "on" } else { "off" }.to_owned()),
            Node::Integer(value) => Ok(value.to_string()),
            Node::Float(_) => Ok(self.number()?.to_string()),
            _ => Err(self.mismatch("text, a number or a boolean")),
        }
    }
}

/// The candidate that was probably meant: the nearest, when at most a third of its letters differ.
pub(crate) fn near_miss<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written = written.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&written, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
