use super::*;

const FILE: &str = r#"
[policies]
slow = "list(1m, 10m)"

[[queues]]
name = "orders"
retry = "slow"
rules = ["error=*Timeout => fixed(5s)"]

[[queues]]
name = "größe"
work_queue = { x-max-priority = 10 }

[[permissions]]
user = "shop"
consumes = ["orders"]
declares = true

[[decoders]]
anything = "goes"
"#;

#[test]
fn a_file_is_read_and_every_value_has_a_place() {
    let file = Configuration::read(FILE).unwrap();
    assert_eq!(file.policies["slow"].get_ref(), "list(1m, 10m)");
    assert_eq!((file.queues.len(), file.permissions.len()), (2, 1));
    assert!(file.permissions[0].declares && file.permissions[0].publishes.is_empty());
    let at = |offset| Position::of(FILE, offset);
    assert_eq!(
        at(file.queues[0].retry.as_ref().unwrap().span().start),
        Position { line: 7, column: 9 }
    );
    assert_eq!(
        at(file.queues[0].rules[0].span().start),
        Position {
            line: 8,
            column: 10
        }
    );
    assert!(Configuration::read("").unwrap().queues.is_empty());
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_column() {
    for (text, line, column, said) in [
        ("[[queues]]\nname = 7\n", 2, 8, "string"),
        (
            "[[queues]]\nname = \"a\"\nrety = \"fixed(5s)\"\n",
            3,
            1,
            "rety",
        ),
        ("[[queues]]\nretry = \"fixed(5s)\"\n", 1, 1, "name"),
        ("a = 1\n", 1, 1, "unknown field"),
        ("x = [1,\n  2", 2, 4, ""),
    ] {
        let why = Configuration::read(text).unwrap_err();
        assert_eq!(why.position, Position { line, column }, "{text:?}: {why}");
        assert!(
            why.message.contains(said) && !why.message.contains('\n'),
            "{why}"
        );
    }
}

#[test]
fn columns_count_characters() {
    assert_eq!(
        Position::of("größe = 1", "größe ".len()),
        Position { line: 1, column: 7 }
    );
    assert_eq!(Position::of("ö", 1), Position { line: 1, column: 1 });
    assert_eq!(Position::of("a\nb", 99), Position { line: 2, column: 2 });
}
