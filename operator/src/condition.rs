//! A condition on a message in the Common Expression Language: `body.customer.id == 7`.
//!
//! It is judged on a thread of its own with a large stack. An expression can nest loops over lists that a stranger's message holds, and nothing
//! in CEL bounds their time. So each step of a loop asks whether there is time left.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use cel::{
    Context, Env, ExecutionError, IdedExpr, Program, Value,
    common::ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, operators::CONDITIONAL},
    objects::{Key, Map},
};
use serde_json::Value as Json;

/// Bytes of an expression at most.
const LONGEST: usize = 4096;
/// Brackets within brackets at most: a parser goes down as deep.
const DEEPEST: usize = 50;
const STACK: usize = 64 << 20;
/// How long one message may take, of the processor: a busy machine is no reason to give a message up.
const LIMIT: Duration = Duration::from_millis(500);
/// How long one step of a loop may take, with a text as large as a body can be.
const STEP: Duration = Duration::from_secs(10);
/// Why a message that takes longer is not judged.
const SLOW: &str = "it takes more than half a second of processor time";
/// Why a message is not judged whose thread does not answer.
const NO_ANSWER: &str = "a step of it takes more than ten seconds";
/// What each step of a loop asks. No expression can have this name.
const IN_TIME: &str = "@in_time";

/// What an expression is judged on: values by the names of variables.
pub type Variables = serde_json::Map<String, Json>;

/// A condition that messages are chosen by.
#[derive(Debug)]
pub struct Condition {
    text: String,
    evaluator: Option<Evaluator>,
    /// The variables that it has.
    used: Vec<String>,
}

/// Why a message cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvaluationError {
    /// The reason, in words that may quote the message.
    pub why: String,
    /// Whether it took too long.
    pub is_slow: bool,
}

impl EvaluationError {
    fn of(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_slow: false,
        }
    }

    fn slow() -> Self {
        Self {
            why: SLOW.to_owned(),
            is_slow: true,
        }
    }
}

/// The thread that judges.
#[derive(Debug)]
struct Evaluator {
    questions: Sender<Variables>,
    answers: Receiver<Result<bool, EvaluationError>>,
    /// How many steps of loops it has taken.
    steps: Arc<AtomicU64>,
}

impl Condition {
    /// Reads an expression that may use these variables.
    ///
    /// # Errors
    /// A sentence with line and column, for what is no expression, or uses another variable.
    pub fn parse(text: &str, variables: &[&str]) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!(
                "it has {} bytes, and {LONGEST} are the most",
                text.len()
            ));
        }
        let mut depth = 0_usize;
        for (at, c) in text.char_indices() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > DEEPEST {
                return Err(format!(
                    "at column {}: brackets are nested more than {DEEPEST} deep",
                    at + 1
                ));
            }
        }
        let (evaluator, used) = Evaluator::start(text, variables)?;
        Ok(Self {
            text: text.to_owned(),
            evaluator: Some(evaluator),
            used,
        })
    }

    /// Whether it goes by this variable. Others need not be given.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.used.iter().any(|used| used == variable)
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// Why that cannot be told: a field that is not there, values that cannot be compared, a result that is neither true nor false, or more
    /// than half a second of processor time. The message does not match then. The next one is judged all the same.
    pub fn holds(&mut self, variables: Variables) -> Result<bool, EvaluationError> {
        let gone = || EvaluationError::of("it cannot be judged");
        let evaluator = match self.evaluator.take() {
            Some(evaluator) => evaluator,
            None => {
                Evaluator::start(&self.text, &[])
                    .map_err(EvaluationError::of)?
                    .0
            }
        };
        evaluator.questions.send(variables).map_err(|_| gone())?;
        let steps = || evaluator.steps.load(Ordering::Relaxed);
        match wait_for(&evaluator.answers, STEP, steps) {
            Ok(answer) => {
                self.evaluator = Some(evaluator);
                answer
            }
            // The thread ends with its step.
            Err(RecvTimeoutError::Timeout) => Err(EvaluationError {
                why: NO_ANSWER.to_owned(),
                is_slow: true,
            }),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

/// Waits for an answer as long as there are steps: on a busy machine, half a second of processor time may take long.
fn wait_for<T>(
    answers: &Receiver<T>,
    longest_step: Duration,
    mut steps: impl FnMut() -> u64,
) -> Result<T, RecvTimeoutError> {
    let mut seen = steps();
    loop {
        match answers.recv_timeout(longest_step) {
            Err(RecvTimeoutError::Timeout) => {
                let now = steps();
                if now == seen {
                    return Err(RecvTimeoutError::Timeout);
                }
                seen = now;
            }
            answered => return answered,
        }
    }
}

impl Evaluator {
    /// Starts the thread, and waits until it has read the expression. No names: any may be used. Returns those that are.
    fn start(text: &str, names: &[&str]) -> Result<(Self, Vec<String>), String> {
        let (questions, asked) = channel::<Variables>();
        let (answer, answers) = channel();
        let (ready, is_ready) = channel();
        let steps = Arc::new(AtomicU64::default());
        let counted = Arc::clone(&steps);
        let text = text.to_owned();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        thread::Builder::new()
            .name("condition".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let program = catch_unwind(|| read(&text, &names))
                    .unwrap_or_else(|_| Err("it cannot be read".to_owned()));
                let program = match program {
                    Ok(program) => program,
                    Err(why) => return drop(ready.send(Err(why))),
                };
                let used = program.references();
                let used = used.variables().into_iter().map(str::to_owned);
                let _ = ready.send(Ok(used.collect())); // whoever has gone needs none
                let mut timed = program.expression().clone();
                ask_in_loops(&mut timed);
                let environment = Arc::new(Env::stdlib());
                while let Ok(variables) = asked.recv() {
                    let evaluated = catch_unwind(AssertUnwindSafe(|| {
                        evaluator(&timed, &environment, variables, &counted)
                    }));
                    let evaluated = evaluated
                        .unwrap_or_else(|_| Err(EvaluationError::of("it cannot be judged")));
                    if answer.send(evaluated).is_err() {
                        return;
                    }
                }
            })
            .map_err(|why| format!("there is no thread to judge it: {why}"))?;
        let used = is_ready
            .recv_timeout(STEP)
            .unwrap_or_else(|_| Err("it cannot be read".to_owned()))?;
        let evaluator = Self {
            questions,
            answers,
            steps,
        };
        Ok((evaluator, used))
    }
}

fn read(text: &str, names: &[String]) -> Result<Program, String> {
    let program = Program::compile(text).map_err(|errors| match errors.errors.first() {
        Some(error) => {
            let (line, column) = error.pos;
            let line = if line > 1 {
                format!("line {line}, ")
            } else {
                String::new()
            };
            format!("at {line}column {column}: {}", error.msg)
        }
        None => "it is no expression".to_owned(),
    })?;
    if names.is_empty() {
        return Ok(program);
    }
    let mut bound = Vec::new();
    loops(program.expression(), &mut bound);
    let references = program.references();
    let mut used = references.variables();
    used.sort_unstable();
    let is_known = |used: &str| {
        TYPES.contains(&used) || bound.contains(&used) || names.iter().any(|name| name == used)
    };
    if let Some(other) = used.into_iter().find(|used| !is_known(used)) {
        return Err(format!(
            "there is no `{other}`; there are {}",
            names.join(", ")
        ));
    }
    Ok(program)
}

/// What `type(x)` is compared with.
const TYPES: [&str; 10] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
];

/// The variables that `exists`, `map` and their like bring.
fn loops<'e>(node: &'e IdedExpr, bound: &mut Vec<&'e str>) {
    let entries = |entries: &'e [IdedEntryExpr], bound: &mut Vec<&'e str>| {
        for entry in entries {
            match &entry.expr {
                EntryExpr::StructField(field) => loops(&field.value, bound),
                EntryExpr::MapEntry(entry) => {
                    loops(&entry.key, bound);
                    loops(&entry.value, bound);
                }
            }
        }
    };
    match &node.expr {
        Expr::Comprehension(each) => {
            bound.push(&each.iter_var);
            bound.extend(each.iter_var2.as_deref());
            bound.push(&each.accu_var);
            for part in [
                &each.iter_range,
                &each.accu_init,
                &each.loop_cond,
                &each.loop_step,
                &each.result,
            ] {
                loops(part, bound);
            }
        }
        Expr::Call(call) => {
            for part in call.target.as_deref().into_iter().chain(&call.args) {
                loops(part, bound);
            }
        }
        Expr::List(list) => list.elements.iter().for_each(|item| loops(item, bound)),
        Expr::Map(map) => entries(&map.entries, bound),
        Expr::Struct(fields) => entries(&fields.entries, bound),
        Expr::Select(select) => loops(&select.operand, bound),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

/// Has every step of every loop ask whether there is time left.
fn ask_in_loops(node: &mut IdedExpr) {
    let of_entries = |entries: &mut Vec<IdedEntryExpr>| {
        for entry in entries {
            match &mut entry.expr {
                EntryExpr::StructField(field) => ask_in_loops(&mut field.value),
                EntryExpr::MapEntry(entry) => {
                    ask_in_loops(&mut entry.key);
                    ask_in_loops(&mut entry.value);
                }
            }
        }
    };
    match &mut node.expr {
        Expr::Comprehension(each) => {
            for part in [
                &mut each.iter_range,
                &mut each.accu_init,
                &mut each.loop_cond,
                &mut each.loop_step,
                &mut each.result,
            ] {
                ask_in_loops(part);
            }
            let step = &mut each.loop_step;
            // `map` and `filter` go on in any case. Their steps keep the form that the library makes fast: `condition ? step : what there is`.
            match (&each.loop_cond.expr, &mut step.expr) {
                (Expr::Literal(_), Expr::Call(call)) if call.func_name == CONDITIONAL => {
                    if let Some(condition) = call.args.first_mut() {
                        only_in_time(condition, in_time());
                    }
                }
                (Expr::Literal(_), _) => {
                    let kept = IdedExpr {
                        id: step.id,
                        expr: Expr::Ident(each.accu_var.clone()),
                    };
                    only_in_time(step, kept);
                }
                _ => only_in_time(&mut each.loop_cond, in_time()),
            }
        }
        Expr::Call(call) => {
            for part in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
                ask_in_loops(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(ask_in_loops),
        Expr::Map(map) => of_entries(&mut map.entries),
        Expr::Struct(fields) => of_entries(&mut fields.entries),
        Expr::Select(select) => ask_in_loops(&mut select.operand),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}

/// `@in_time() ? node : otherwise`. The question fails instead of being false.
fn only_in_time(node: &mut IdedExpr, otherwise: IdedExpr) {
    let id = node.id;
    let inner = std::mem::replace(node, in_time());
    let asked = in_time();
    node.id = id;
    node.expr = Expr::Call(CallExpr {
        func_name: CONDITIONAL.to_owned(),
        target: None,
        args: vec![asked, inner, otherwise],
    });
}

fn in_time() -> IdedExpr {
    IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr {
            func_name: IN_TIME.to_owned(),
            target: None,
            args: Vec::new(),
        }),
    }
}

/// The time of the processor that this thread may take for one message.
#[derive(Clone, Copy)]
struct TimeBudget {
    /// It cannot be used up before.
    earliest: Instant,
    processor: Duration,
}

impl TimeBudget {
    fn start() -> Self {
        Self {
            earliest: Instant::now() + LIMIT,
            processor: processor_time() + LIMIT,
        }
    }

    fn is_used_up(self) -> bool {
        // Asking for the time of the processor costs ten times as much.
        Instant::now() >= self.earliest && processor_time() >= self.processor
    }
}

/// How much time of the processor this thread has taken.
#[cfg(unix)]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Elsewhere the time on the wall has to do.
#[cfg(not(unix))]
fn processor_time() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

fn evaluator(
    expression: &IdedExpr,
    environment: &Arc<Env>,
    variables: Variables,
    steps: &Arc<AtomicU64>,
) -> Result<bool, EvaluationError> {
    let mut context = Context::with_env(Arc::clone(environment));
    for (name, value) in variables {
        context.add_variable_from_value(name, convert(value));
    }
    let budget = TimeBudget::start();
    let steps = Arc::clone(steps);
    let in_time = move || {
        steps.fetch_add(1, Ordering::Relaxed);
        match budget.is_used_up() {
            false => Ok(true),
            true => Err(ExecutionError::function_error(IN_TIME, SLOW)),
        }
    };
    if context.add_function(IN_TIME, in_time).is_err() {
        return Err(EvaluationError::of("it cannot be judged"));
    }
    match context.resolve(expression) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(EvaluationError::of(format!(
            "it gives a {}, neither true nor false",
            other.type_of()
        ))),
        Err(_) if budget.is_used_up() => Err(EvaluationError::slow()),
        Err(ExecutionError::NoSuchOverload(error))
            if matches!(error.function(), "_._" | "_[_]") =>
        {
            let what = error
                .argument_types()
                .first()
                .map_or("value", String::as_str);
            Err(EvaluationError::of(format!("a {what} has no fields")))
        }
        Err(error) => Err(EvaluationError::of(short(&error.to_string()))),
    }
}

/// An error may quote the whole body.
fn short(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whole numbers are signed where they fit, so that they can be compared and counted with those of the expression.
fn convert(value: Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::UInt(number),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text)),
        Json::Array(items) => Value::List(Arc::new(items.into_iter().map(convert).collect())),
        Json::Object(map) => {
            let map: HashMap<Key, Value> = map
                .into_iter()
                .map(|(key, value)| (Key::String(Arc::new(key)), convert(value)))
                .collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}

#[cfg(test)]
mod tests {
    use retryrmq_harness::fuzz::{fuzz, gist};
    use serde_json::json;

    use super::*;

    fn on(text: &str, body: Json) -> Result<bool, String> {
        let mut variables = Variables::new();
        variables.insert("body".to_owned(), body);
        let mut condition = Condition::parse(text, &["body", "headers"])?;
        condition
            .holds(variables)
            .map_err(|unevaluated| unevaluated.why)
    }

    #[test]
    fn conditions_hold_or_not() {
        let body = json!({"customer": {"id": 7, "name": "Ada"}, "total": 12.5, "lines": [{"n": 1}, {"n": 30}], "big": u64::MAX});
        for (text, expected) in [
            ("body.customer.id == 7", true),
            ("body.customer.id > 7", false),
            ("body.customer.id + 1 == 8", true),
            (
                "body.total >= 12.5 && body.customer.name.startsWith('A')",
                true,
            ),
            ("body.lines.exists(line, line.n > 20)", true),
            ("body['lines'].size() == 2", true),
            (
                "has(body.nothing) || body.customer.name in ['Ada', 'Bob']",
                true,
            ),
            ("body.customer.name.matches('^A.a$')", true),
            ("body.total > 12", true),
            ("body.big > 1u", true),
        ] {
            assert_eq!(on(text, body.clone()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn it_tells_which_variables_it_goes_by() {
        for (text, body, headers) in [
            ("body.id == 7", true, false),
            ("headers['body'] == 'body'", false, true),
            ("[1].exists(body, body == 1) || headers.x", false, true),
            ("{'a': body}.a == {headers.x: 1}", true, true),
            ("has(body.x) ? true : headers == {}", true, true),
            ("true", false, false),
        ] {
            let condition = Condition::parse(text, &["body", "headers"]).unwrap();
            let uses = (condition.uses("body"), condition.uses("headers"));
            // A loop's own variable may be taken for one of ours: then it is given for nothing.
            assert!(uses.0 >= body && uses.1 >= headers, "{text}: {uses:?}");
            assert!(text.contains("body") || !uses.0, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_judged_says_why() {
        let body = json!({"id": "x"});
        for (text, words) in [
            ("body.customer == 7", "customer"),
            ("body.id", "string"),
            ("body.id.more == 1", "a string has no fields"),
            ("body.id - 1 == 2", ""),
        ] {
            let why = on(text, body.clone()).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
        for (text, words) in [
            ("body.id ==", "column"),
            ("body.id = 7", "column 9"),
            ("bdy.id == 7", "no `bdy`; there are body, headers"),
            ("", "column"),
        ] {
            let why = Condition::parse(text, &["body", "headers"]).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn hostile_expressions_are_refused_or_end() {
        let deep = format!("{}body{}", "(".repeat(2_000), ")".repeat(2_000));
        assert!(Condition::parse(&deep, &[]).unwrap_err().contains("nested"));
        assert!(
            Condition::parse(&"!".repeat(5_000), &[])
                .unwrap_err()
                .contains("4096")
        );
        let _ = Condition::parse(&format!("{}true", "!".repeat(4_000)), &[]); // whatever it says, it comes back
        let _ = Condition::parse(&format!("{}1 == 1", "-".repeat(4_000)), &[]);
    }

    #[test]
    fn what_takes_too_long_is_given_up_and_the_next_message_is_judged() {
        let list: Vec<u32> = (0..2_000).collect();
        for text in [
            "body.all(a, body.all(b, body.all(c, body.all(d, a + b + c + d >= 0))))",
            "body.exists(a, body.exists(b, body.exists(c, body.exists(d, a + b + c + d < 0))))",
            "body.map(a, body.map(b, body.map(c, a + b + c).size())).size() == 0",
            "body.filter(a, body.filter(b, body.filter(c, a + b + c < 0).size() > 0).size() > 0).size() == 1",
            "body.exists_one(a, body.exists_one(b, body.exists_one(c, a + b + c < 0)))",
            "[1].map(x, body.all(a, body.all(b, body.all(c, a + b + c >= 0))))[0]",
            "{'a': body.all(a, body.all(b, body.all(c, a + b + c >= 0)))}.a",
        ] {
            let mut condition = Condition::parse(text, &["body"]).unwrap();
            // More than a few do not turn it off.
            let messages = if text.starts_with("body.all") { 4 } else { 1 };
            for _ in 0..messages {
                let variables = Variables::from_iter([("body".to_owned(), json!(list))]);
                assert_eq!(
                    condition.holds(variables),
                    Err(EvaluationError::slow()),
                    "{text}"
                );
                assert!(
                    condition.evaluator.is_some(),
                    "the same thread goes on: {text}"
                );
            }
            let variables = Variables::from_iter([("body".to_owned(), json!([1]))]);
            assert!(condition.holds(variables).is_ok(), "{text}");
        }
    }

    #[test]
    fn an_answer_is_awaited_while_there_are_steps() {
        let (_evaluator, answers) = channel::<()>();
        let mut taken = [0, 1, 2, 2].into_iter();
        let waited = wait_for(&answers, Duration::from_millis(1), || taken.next().unwrap());
        assert_eq!(waited, Err(RecvTimeoutError::Timeout));
        assert_eq!(taken.next(), None, "it gives up when no step was taken");
    }

    #[test]
    fn loops_give_the_same_with_the_question_for_time() {
        let body = json!({"n": (0..300).collect::<Vec<u32>>(), "m": {"a": 1, "b": 2}});
        for (text, expected) in [
            ("body.n.all(x, x >= 0)", true),
            ("body.n.exists(x, x == 299)", true),
            ("body.n.exists(x, x == 300)", false),
            ("body.n.exists_one(x, x == 7)", true),
            ("body.n.exists_one(x, x < 2)", false),
            ("body.n.map(x, x + 1).size() == 300", true),
            ("body.n.map(x, x > 290, x)[0] == 291", true),
            ("body.n.filter(x, x % 2 == 0).size() == 150", true),
            ("body.m.all(k, body.m[k] > 0)", true),
            (
                "body.n.all(x, body.n.size() == 300 && [x].exists(y, y == x))",
                true,
            ),
            // An error in one element does not hide that another one decides.
            ("[0, 1].exists(x, 1 / x == 1)", true),
        ] {
            assert_eq!(on(text, body.clone()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn any_text_is_a_condition_or_a_sentence() {
        let seeds: [&[u8]; 4] = [
            b"body.customer.id == 7",
            b"headers['x'] in ['a', \"b\"] && !has(body.y)",
            b"body.lines.filter(l, l.n > 2).map(l, l.n).size() >= 1u ? true : false",
            b"duration('1h') + timestamp('2026-01-01T00:00:00Z') > timestamp(body.at)",
        ];
        let words = [
            "body", "headers", ".", "[", "(", ")", "'", "==", "&&", "has(", ".map(x, ", "b'",
            "r\"\\", "1.5e3", "?", "{", "//",
        ];
        fuzz(&seeds, &words, |text| {
            let text = String::from_utf8_lossy(text);
            gist(&match on(&text, json!({"customer": {"id": 7}})) {
                Ok(holds) => holds.to_string(),
                Err(why) => why,
            })
        });
    }
}
