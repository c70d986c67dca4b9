//! Transaction scripts in pgbench's language, compiled once.
//!
//! A script is a sequence of SQL statements, each ended by `;`, and of meta commands, each on a line
//! of its own that starts with a backslash. Here: `\set NAME EXPRESSION`, with integers, `:variable`,
//! `+ - * / %`, parentheses and `random(LOWEST, HIGHEST)`. Variables written `:name` inside SQL are
//! substituted in protocol `simple` and passed as parameters `$1`, `$2`, … otherwise, one parameter
//! for each occurrence, as pgbench does.

use crate::error::{Error, Result};
use crate::rng::SplitMix64;

/// A compiled script.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// Commands in order.
    pub commands: Vec<Command>,
    /// Names of the variables; a slot is an index into it.
    pub variables: Vec<String>,
}

/// One command of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `\set`: evaluates into a slot.
    Set {
        /// Where the value goes.
        slot: usize,
        /// What is evaluated.
        expression: Expression,
    },
    /// A statement sent to the server and awaited.
    Sql(Statement),
}

/// One SQL statement of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// Number of the statement within its script, from 0.
    pub index: usize,
    /// The text with `$1`, `$2`, … for variables.
    pub text: String,
    /// Slots of the parameters, in the order of their occurrence.
    pub parameters: Vec<usize>,
    /// The text cut at the parameters: `pieces[0] value(parameters[0]) pieces[1] …`.
    pub pieces: Vec<String>,
}

/// An integer expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    /// A number.
    Constant(i64),
    /// The value of a slot.
    Variable(usize),
    /// Two operands and an operator.
    Binary(Operator, Box<Expression>, Box<Expression>),
    /// `random(lowest, highest)`: uniform, both ends included.
    Random(Box<Expression>, Box<Expression>),
}

/// Operators on integers; overflow and division by zero are errors, as in pgbench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`, truncating towards zero
    Divide,
    /// `%`, with the sign of the left operand
    Remainder,
}

/// Why an expression has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undefined {
    /// The result does not fit 64 bits.
    Overflow,
    /// A division by zero.
    DivisionByZero,
    /// `random(lowest, highest)` with lowest above highest.
    EmptyRange,
}

impl std::fmt::Display for Undefined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Overflow => "bigint out of range",
            Self::DivisionByZero => "division by zero",
            Self::EmptyRange => "empty range given to random",
        })
    }
}

impl Expression {
    /// The value, given the values of all slots and the source of random numbers.
    ///
    /// # Errors
    /// [`Undefined`] when the arithmetic has no result.
    pub fn evaluate(
        &self,
        values: &[i64],
        random: &mut SplitMix64,
    ) -> std::result::Result<i64, Undefined> {
        match self {
            Self::Constant(value) => Ok(*value),
            Self::Variable(slot) => Ok(values[*slot]),
            Self::Binary(operator, left, right) => {
                let left = left.evaluate(values, random)?;
                let right = right.evaluate(values, random)?;
                match operator {
                    Operator::Add => left.checked_add(right),
                    Operator::Subtract => left.checked_sub(right),
                    Operator::Multiply => left.checked_mul(right),
                    Operator::Divide | Operator::Remainder if right == 0 => {
                        return Err(Undefined::DivisionByZero);
                    }
                    Operator::Divide => left.checked_div(right),
                    // The one overflow, i64::MIN % -1, has the mathematical result 0.
                    Operator::Remainder => Some(left.wrapping_rem(right)),
                }
                .ok_or(Undefined::Overflow)
            }
            Self::Random(lowest, highest) => {
                let lowest = lowest.evaluate(values, random)?;
                let highest = highest.evaluate(values, random)?;
                uniform(random, lowest, highest)
            }
        }
    }
}

/// A number from `lowest` to `highest`, both included, each equally likely.
fn uniform(
    random: &mut SplitMix64,
    lowest: i64,
    highest: i64,
) -> std::result::Result<i64, Undefined> {
    let span = highest.checked_sub(lowest).ok_or(Undefined::Overflow)?;
    let size = u64::try_from(span).map_err(|_| Undefined::EmptyRange)? + 1;
    Ok(lowest.wrapping_add_unsigned(random.below(size)))
}

impl Script {
    /// Compiles `text`. `given` are variables that exist before the script starts, such as `scale`;
    /// they take the first slots, in that order.
    ///
    /// # Errors
    /// A [`crate::ErrorKind::Workload`] error that names the line.
    pub fn compile(text: &str, given: &[&str]) -> Result<Self> {
        let mut script = Self {
            commands: Vec::new(),
            variables: given.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut sql = String::new();
        let mut sql_line = 0;
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
            if sql.trim().is_empty() && line.trim_start().starts_with('\\') {
                script.meta(number, line.trim())?;
                continue;
            }
            for part in line.split_inclusive(';') {
                if sql.trim().is_empty() {
                    sql.clear();
                    sql_line = number;
                }
                sql.push_str(part);
                if part.ends_with(';') {
                    script.sql(sql_line, sql.trim())?;
                    sql.clear();
                }
            }
            sql.push('\n');
        }
        if !sql.trim().is_empty() {
            script.sql(sql_line, sql.trim())?;
        }
        if script.statements().next().is_none() {
            return Err(Error::workload("the script has no SQL statement"));
        }
        Ok(script)
    }

    /// The SQL statements, in order.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.commands.iter().filter_map(|command| match command {
            Command::Sql(statement) => Some(statement),
            Command::Set { .. } => None,
        })
    }

    fn meta(&mut self, line: usize, text: &str) -> Result<()> {
        let rest = text
            .strip_prefix("\\set")
            .filter(|rest| rest.starts_with(char::is_whitespace))
            .ok_or_else(|| {
                let word = text.split_whitespace().next().unwrap_or(text);
                Error::workload(format!("line {line}: `{word}` is not a known meta command"))
                    .hint("known: `\\set NAME EXPRESSION`")
            })?
            .trim_start();
        let end = rest.find(char::is_whitespace).ok_or_else(|| {
            Error::workload(format!("line {line}: `\\set` takes a name and an expression"))
        })?;
        let (name, source) = rest.split_at(end);
        let expression =
            ExpressionParser::new(source, &self.variables).parse().map_err(|problem| {
                Error::workload(format!("line {line}: `{}`: {problem}", source.trim()))
            })?;
        let slot = self.slot(name).unwrap_or_else(|| {
            self.variables.push(name.to_owned());
            self.variables.len() - 1
        });
        self.commands.push(Command::Set { slot, expression });
        Ok(())
    }

    fn sql(&mut self, line: usize, source: &str) -> Result<()> {
        let mut statement = Statement {
            index: self.statements().count(),
            text: String::new(),
            parameters: Vec::new(),
            pieces: Vec::new(),
        };
        let mut piece = String::new();
        let mut rest = source;
        while let Some(at) = rest.find(':') {
            let (before, from_colon) = rest.split_at(at);
            piece.push_str(before);
            let name_length = from_colon[1..]
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .unwrap_or(from_colon.len() - 1);
            if name_length == 0 || from_colon.starts_with("::") {
                // A cast or a lone colon is SQL; both colons of a cast are skipped at once.
                let length = if from_colon.starts_with("::") { 2 } else { 1 };
                piece.push_str(&from_colon[..length]);
                rest = &from_colon[length..];
                continue;
            }
            let name = &from_colon[1..=name_length];
            let slot = self.slot(name).ok_or_else(|| {
                Error::workload(format!("line {line}: variable `{name}` is not set anywhere above"))
            })?;
            statement.parameters.push(slot);
            statement.text.push_str(&piece);
            statement.text.push_str(&format!("${}", statement.parameters.len()));
            statement.pieces.push(std::mem::take(&mut piece));
            rest = &from_colon[1 + name_length..];
        }
        piece.push_str(rest);
        statement.text.push_str(&piece);
        statement.pieces.push(piece);
        self.commands.push(Command::Sql(statement));
        Ok(())
    }

    fn slot(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|variable| variable == name)
    }
}

/// Recursive descent over one expression.
struct ExpressionParser<'a> {
    rest: &'a str,
    variables: &'a [String],
}

impl<'a> ExpressionParser<'a> {
    fn new(source: &'a str, variables: &'a [String]) -> Self {
        Self { rest: source.trim(), variables }
    }

    fn parse(mut self) -> std::result::Result<Expression, String> {
        let expression = self.sum()?;
        if self.rest.is_empty() {
            Ok(expression)
        } else {
            Err(format!("unexpected `{}`", self.rest))
        }
    }

    fn eat(&mut self, token: char) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: char) -> std::result::Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("`{token}` expected at `{}`", self.rest)) }
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn sum(&mut self) -> std::result::Result<Expression, String> {
        let mut left = self.product()?;
        loop {
            let operator = if self.eat('+') {
                Operator::Add
            } else if self.eat('-') {
                Operator::Subtract
            } else {
                return Ok(left);
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> std::result::Result<Expression, String> {
        let mut left = self.operand()?;
        loop {
            let operator = if self.eat('*') {
                Operator::Multiply
            } else if self.eat('/') {
                Operator::Divide
            } else if self.eat('%') {
                Operator::Remainder
            } else {
                return Ok(left);
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.operand()?));
        }
    }

    fn operand(&mut self) -> std::result::Result<Expression, String> {
        if self.eat('(') {
            let inner = self.sum()?;
            self.expect(')')?;
            return Ok(inner);
        }
        if self.eat('-') {
            let zero = Box::new(Expression::Constant(0));
            return Ok(match self.operand()? {
                Expression::Constant(value) => Expression::Constant(value.wrapping_neg()),
                other => Expression::Binary(Operator::Subtract, zero, Box::new(other)),
            });
        }
        if self.eat(':') {
            let name = self.word();
            return self
                .variables
                .iter()
                .position(|variable| variable == name)
                .map(Expression::Variable)
                .ok_or_else(|| format!("variable `{name}` is not set anywhere above"));
        }
        let word = self.word();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word
                .parse()
                .map(Expression::Constant)
                .map_err(|_| format!("`{word}` is not a 64-bit integer"));
        }
        match word {
            "random" => {
                self.expect('(')?;
                let lowest = self.sum()?;
                self.expect(',')?;
                let highest = self.sum()?;
                self.expect(')')?;
                Ok(Expression::Random(Box::new(lowest), Box::new(highest)))
            }
            "" => Err(format!("a value is expected at `{}`", self.rest)),
            other => Err(format!("`{other}` is not a known function")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(source: &str) -> std::result::Result<i64, Undefined> {
        let variables = ["scale".to_owned()];
        ExpressionParser::new(source, &variables)
            .parse()
            .expect("parses")
            .evaluate(&[7], &mut SplitMix64::new(1))
    }

    #[test]
    fn arithmetic_follows_the_usual_precedence() {
        for (source, value) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("100000 * :scale", 700_000),
            ("-5000", -5000),
            ("7 / -2", -3),
            ("-7 % 3", -1),
            ("10 - 3 - 2", 5),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(evaluate(source), Ok(value), "{source}");
        }
    }

    #[test]
    fn arithmetic_without_a_result_is_named() {
        assert_eq!(evaluate("1 / 0"), Err(Undefined::DivisionByZero));
        assert_eq!(evaluate("9223372036854775807 + 1"), Err(Undefined::Overflow));
        assert_eq!(evaluate("random(2, 1)"), Err(Undefined::EmptyRange));
    }

    #[test]
    fn random_reaches_both_ends_and_nothing_else() {
        let mut random = SplitMix64::new(5);
        let mut seen = [0_u32; 4];
        for _ in 0..4000 {
            let value = uniform(&mut random, -1, 2).expect("a range");
            seen[usize::try_from(value + 1).expect("within the range")] += 1;
        }
        // 1,000 expected of each; 3 degrees of freedom, chi-squared below 16.3 in 999 of 1,000 seeds.
        let chi_squared: f64 = seen.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_squared < 16.3, "{seen:?}");
        assert_eq!(uniform(&mut random, i64::MAX, i64::MAX), Ok(i64::MAX));
    }

    #[test]
    fn statements_keep_their_text_and_number_their_parameters() {
        let script = Script::compile(
            "\\set aid random(1, 10)\nSELECT :aid, x::text, ':' FROM t\n WHERE a = :aid;",
            &["scale"],
        )
        .expect("compiles");
        let statement = script.statements().next().expect("one statement");
        assert_eq!(statement.text, "SELECT $1, x::text, ':' FROM t\n WHERE a = $2;");
        assert_eq!(statement.parameters, [1, 1]);
        assert_eq!(statement.pieces, ["SELECT ", ", x::text, ':' FROM t\n WHERE a = ", ";"]);
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, message) in [
            ("\\set a random(1,", "line 1: `random(1,`: a value is expected at ``"),
            ("SELECT 1;\nSELECT :b;", "line 2: variable `b` is not set anywhere above"),
            ("\\sett a 1\nSELECT 1;", "line 1: `\\sett` is not a known meta command"),
            ("\\set a 1 2\nSELECT 1;", "line 1: `1 2`: unexpected `2`"),
            ("\\set a 1", "the script has no SQL statement"),
        ] {
            assert_eq!(Script::compile(text, &[]).expect_err(text).message, message);
        }
    }
}
