//! AMQP values as Python values, and back.
//!
//! | AMQP | Python | back |
//! |---|---|---|
//! | `t` boolean | `bool` | `t` |
//! | all integers | `int` | `l` (64 bits) |
//! | `f`, `d` | `float` | `d` |
//! | `D` decimal | `decimal.Decimal` | `D` |
//! | `s`, `S` text | `str`, or `bytes` if it is not UTF-8 | `S` |
//! | `x` bytes | `bytes` | `x` |
//! | `T` timestamp | `datetime` (UTC), or `int` past the year 9999 | `T` (whole seconds) |
//! | `A` array | `list` | `A` |
//! | `F` table | `dict` | `F` |
//! | `V` void | `None` | `V` |

use pyo3::{
    Bound, IntoPyObject, PyAny, PyErr, PyResult, Python, intern, pyfunction,
    types::{
        PyAnyMethods, PyBool, PyBytes, PyDict, PyDictMethods, PyFloat, PyInt, PyList, PyModule,
        PyString, PyStringMethods, PyTuple,
    },
};
use retryrmq::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};

use crate::errors::{bad_option, exception};

/// Deeper nesting in outgoing values is refused. The core limits incoming values.
const DEPTH: usize = 32;

/// A table as a `dict`.
pub(crate) fn table<'py>(py: Python<'py>, table: &FieldTable) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, entry) in table {
        dict.set_item(name.as_str(), value(py, entry)?)?;
    }
    Ok(dict)
}

fn value<'py>(py: Python<'py>, value: &AMQPValue) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        AMQPValue::Boolean(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        AMQPValue::ShortShortInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::ShortShortUInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::ShortInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::ShortUInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::LongInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::LongUInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::LongLongInt(number) => number.into_pyobject(py)?.into_any(),
        AMQPValue::Float(number) => PyFloat::new(py, f64::from(*number)).into_any(),
        AMQPValue::Double(number) => PyFloat::new(py, *number).into_any(),
        AMQPValue::DecimalValue(decimal) => decimal_value(py, decimal)?,
        AMQPValue::ShortString(text) => PyString::new(py, text.as_str()).into_any(),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, text.as_bytes()).into_any(),
        },
        AMQPValue::ByteArray(bytes) => PyBytes::new(py, bytes.as_slice()).into_any(),
        AMQPValue::Timestamp(seconds) => time(py, *seconds)?,
        AMQPValue::FieldArray(array) => {
            let list = PyList::empty(py);
            for entry in array.as_slice() {
                pyo3::types::PyListMethods::append(&list, self::value(py, entry)?)?;
            }
            list.into_any()
        }
        AMQPValue::FieldTable(entries) => table(py, entries)?.into_any(),
        AMQPValue::Void => py.None().into_bound(py),
    })
}

fn decimal_value<'py>(py: Python<'py>, decimal: &DecimalValue) -> PyResult<Bound<'py, PyAny>> {
    // From text, which is exact: arithmetic would round to the caller's decimal context.
    let text = format!("{}E-{}", decimal.value, decimal.scale);
    PyModule::import(py, "decimal")?
        .getattr(intern!(py, "Decimal"))?
        .call1((text,))
}

/// Seconds since 1970 as a `datetime` in UTC, or as a number beyond Python's calendar.
#[pyfunction]
pub(crate) fn time(py: Python<'_>, seconds: u64) -> PyResult<Bound<'_, PyAny>> {
    const END_OF_9999: u64 = 253_402_300_799;
    if seconds > END_OF_9999 {
        return Ok(seconds.into_pyobject(py)?.into_any());
    }
    let datetime = PyModule::import(py, "datetime")?;
    let utc = datetime
        .getattr(intern!(py, "timezone"))?
        .getattr(intern!(py, "utc"))?;
    datetime
        .getattr(intern!(py, "datetime"))?
        .call_method1(intern!(py, "fromtimestamp"), (seconds, utc))
}

/// A `dict` as a table. `what` names it in errors.
pub(crate) fn field_table(dict: &Bound<'_, PyAny>, what: &str) -> PyResult<FieldTable> {
    to_table(dict, what, 0)
}

fn to_table(dict: &Bound<'_, PyAny>, what: &str, depth: usize) -> PyResult<FieldTable> {
    let py = dict.py();
    let Ok(dict) = dict.cast::<PyDict>() else {
        return Err(type_error(what, "a dict", dict));
    };
    if depth > DEPTH {
        return Err(bad_option(
            py,
            &format!("`{what}` is nested more than {DEPTH} levels deep"),
        ));
    }
    let mut table = FieldTable::default();
    // A copy: reading an entry can run Python code, such as that of a time zone, and other threads. Either may change the dict.
    for (name, entry) in dict.copy()?.iter() {
        let Ok(name) = name.cast::<PyString>() else {
            let kind = kind_of(&name);
            return Err(exception(
                py,
                "invalid_type",
                &format!("a name in `{what}` must be a str, not {kind}"),
            ));
        };
        let name = name
            .to_cow()
            .map_err(|_| not_utf8(py, &format!("a name in `{what}`")))?;
        let short = ShortString::try_new(name.as_ref()).map_err(|_| {
            bad_option(
                py,
                &format!(
                    "a name in `{what}` is longer than 255 bytes: `{}…`",
                    head(&name)
                ),
            )
        })?;
        table.insert(
            short,
            to_value(&entry, &format!("{what}[{name:?}]"), depth + 1)?,
        );
    }
    Ok(table)
}

fn to_value(value: &Bound<'_, PyAny>, what: &str, depth: usize) -> PyResult<AMQPValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(AMQPValue::Void);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(AMQPValue::Boolean(flag.extract()?));
    }
    if let Ok(text) = value.cast::<PyString>() {
        let text = text
            .to_cow()
            .map_err(|_| not_utf8(py, &format!("`{what}`")))?;
        return Ok(AMQPValue::LongString(LongString::from(text.as_ref())));
    }
    if value.cast::<PyInt>().is_ok() {
        return value
            .extract::<i64>()
            .map(AMQPValue::LongLongInt)
            .map_err(|_| {
                bad_option(
                    py,
                    &format!("`{what}` does not fit AMQP's 64-bit integers; write it as text"),
                )
            });
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(AMQPValue::Double(number.extract()?));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(AMQPValue::ByteArray(ByteArray::from(
            pyo3::types::PyBytesMethods::as_bytes(bytes),
        )));
    }
    if value.cast::<PyDict>().is_ok() {
        return Ok(AMQPValue::FieldTable(to_table(value, what, depth)?));
    }
    if value.cast::<PyList>().is_ok() || value.cast::<PyTuple>().is_ok() {
        if depth > DEPTH {
            return Err(bad_option(
                py,
                &format!("`{what}` is nested more than {DEPTH} levels deep"),
            ));
        }
        // A copy, as of a dict: a list that grows while it is read would have no end.
        let entries = value.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let mut array = FieldArray::default();
        for (index, entry) in entries.iter().enumerate() {
            array.push(to_value(entry, &format!("{what}[{index}]"), depth + 1)?);
        }
        return Ok(AMQPValue::FieldArray(array));
    }
    if is_a(value, "datetime", "datetime")? {
        return Ok(AMQPValue::Timestamp(seconds(value, what)?));
    }
    if is_a(value, "decimal", "Decimal")? {
        return to_decimal(value, what);
    }
    Err(type_error(
        what,
        "None, bool, int, float, str, bytes, datetime, Decimal, list or dict",
        value,
    ))
}

/// A `datetime` as whole seconds since 1970.
pub(crate) fn seconds(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u64> {
    let py = value.py();
    if value.getattr(intern!(py, "tzinfo"))?.is_none() {
        return Err(bad_option(
            py,
            &format!(
                "`{what}` is a datetime without a time zone; give it one, for example timezone.utc"
            ),
        ));
    }
    let seconds: f64 = value.call_method0(intern!(py, "timestamp"))?.extract()?;
    if seconds < 0.0 {
        return Err(bad_option(
            py,
            &format!("`{what}` is before 1970, which AMQP cannot represent"),
        ));
    }
    Ok(seconds as u64)
}

fn to_decimal(value: &Bound<'_, PyAny>, what: &str) -> PyResult<AMQPValue> {
    let py = value.py();
    let bad = || {
        bad_option(
            py,
            &format!(
                "`{what}` does not fit AMQP's decimals: 0 to 4294967295 with up to 255 places"
            ),
        )
    };
    // Its parts, without arithmetic, which would round to the caller's decimal context.
    let parts = value.call_method0(intern!(py, "as_tuple"))?;
    let part = |name: &str| parts.getattr(name);
    let exponent: i64 = part("exponent")?.extract().map_err(|_| bad())?;
    let places = u8::try_from(exponent.min(0).unsigned_abs()).map_err(|_| bad())?;
    let digits: Vec<u8> = part("digits")?.extract().map_err(|_| bad())?;
    let whole = whole(&digits, exponent.max(0).unsigned_abs()).ok_or_else(bad)?;
    if whole > 0 && part("sign")?.extract::<u8>()? != 0 {
        return Err(bad());
    }
    Ok(AMQPValue::DecimalValue(DecimalValue {
        scale: places,
        value: whole,
    }))
}

/// The number with these digits and this many zeros after them, if it fits.
fn whole(digits: &[u8], zeros: u64) -> Option<u32> {
    let mut number: u32 = 0;
    for digit in digits {
        number = number.checked_mul(10)?.checked_add(u32::from(*digit))?;
    }
    for _ in 0..zeros {
        if number == 0 {
            break;
        }
        number = number.checked_mul(10)?;
    }
    Some(number)
}

fn is_a(value: &Bound<'_, PyAny>, module: &str, class: &str) -> PyResult<bool> {
    value.is_instance(&PyModule::import(value.py(), module)?.getattr(class)?)
}

fn type_error(what: &str, wanted: &str, got: &Bound<'_, PyAny>) -> PyErr {
    let kind = kind_of(got);
    exception(
        got.py(),
        "invalid_type",
        &format!("`{what}` must be {wanted}, not {kind}"),
    )
}

/// A Python string may not be encodable as UTF-8.
fn not_utf8(py: Python<'_>, what: &str) -> PyErr {
    bad_option(
        py,
        &format!("{what} holds a lone surrogate, which UTF-8 cannot encode; send it as bytes"),
    )
}

fn kind_of(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .getattr("__name__")
        .and_then(|name| name.extract::<String>())
        .unwrap_or_default()
}

/// The `repr` of a text.
pub(crate) fn repr(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(PyString::new(py, text).repr()?.to_string())
}

fn head(text: &str) -> String {
    text.chars().take(40).collect()
}
