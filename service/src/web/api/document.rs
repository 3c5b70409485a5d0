//! The description of the API, as OpenAPI 3.1. It is made of the same table as the addresses, and of the types that are read and written.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::response::Response;
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::{Map, Value, json};

use super::{
    super::{auth::SESSION, configuration::Role, csrf::COOKIE, refusal::RefusalKind},
    ROOT,
    operation::{Answer, Operation, operations},
    problem::{PROBLEM, Problem},
    request::{ApiRequest, CSRF},
};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| document(operations()));

/// Refusals that every request may meet.
const USUAL: [RefusalKind; 4] = [
    RefusalKind::Unauthorized,
    RefusalKind::Forbidden,
    RefusalKind::TooManyTries,
    RefusalKind::Unavailable,
];

pub(super) async fn show(request: ApiRequest) -> Response {
    request.ok(&*DOCUMENT)
}

fn document(operations: Vec<Operation>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    // What may be left out has no default that could be sent.
    let settings = settings.with_transform(RecursiveTransform(|schema: &mut Schema| {
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
    }));
    // A field that may be null is always written, and need not be sent.
    let mut written = settings.clone().for_serialize().into_generator();
    let mut read = settings.for_deserialize().into_generator();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for operation in operations {
        let path = format!("{ROOT}{}", operation.path);
        let described = describe(&operation, &mut written, &mut read);
        let methods = paths.entry(path).or_default();
        methods.insert(operation.method.to_owned(), described);
    }
    let refusals = RefusalKind::ALL.iter().map(|kind| {
        let described = refusal(*kind, &mut written);
        (kind.code().to_owned(), described)
    });
    let refusals: Map<String, Value> = refusals.collect();
    let mut schemas = read.take_definitions(true);
    schemas.extend(written.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "retryrmq serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What the page of `retryrmq serve` shows and does, as JSON. Times are RFC 3339 in UTC. Texts of publishers and handlers have \
                            control characters in a visible form; names of queues, marks and fingerprints are as they are.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": refusals,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `[[page.tokens]]`.",
                },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": SESSION,
                    "description": format!(
                        "Somebody who signed in on the page. To change something, the cookie `{COOKIE}` and the header `X-CSRF-Token` are needed as well."
                    ),
                },
                "csrf": {
                    "type": "apiKey",
                    "in": "header",
                    "name": CSRF,
                    "description": format!("The `csrf_token` of `GET {ROOT}/session`."),
                },
            },
        },
    })
}

fn describe(
    operation: &Operation,
    written: &mut SchemaGenerator,
    read: &mut SchemaGenerator,
) -> Value {
    let mut parameters = names(operation.path);
    if let Some(query) = operation.query {
        parameters.extend(query_parameters(query(read).as_value()));
    }
    let mut responses = Map::new();
    for answer in &operation.answers {
        responses.insert(answer.status.to_string(), success(answer, written));
    }
    for kind in USUAL.iter().chain(operation.refusals) {
        let reference = format!("#/components/responses/{}", kind.code());
        responses.insert(
            kind.status().as_str().to_owned(),
            json!({"$ref": reference}),
        );
    }
    let role = match operation.role {
        Role::Reader => "reader",
        Role::Operator => "operator",
        Role::Admin => "admin",
    };
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "description": format!("{}\n\nRole: `{role}`.", operation.description),
        "responses": responses,
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = operation.body {
        let schema = body(read);
        described["requestBody"] = json!({
            "required": true,
            "content": {"application/json": {"schema": schema}},
        });
        described["security"] = json!([{"token": []}, {"session": [], "csrf": []}]);
    }
    described
}

/// The names in an address.
fn names(path: &str) -> Vec<Value> {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let (description, schema) = match name {
            "queue" => (
                "The name of a work queue, percent-encoded: `/` is `%2F`.",
                json!({"type": "string", "minLength": 1, "maxLength": 255}),
            ),
            "mark" => (
                "The mark of a message.",
                json!({"type": "string", "pattern": "^[0-9a-fA-F]{16}$"}),
            ),
            "fingerprint" => (
                "The fingerprint of a group.",
                json!({"type": "string", "minLength": 1}),
            ),
            _ => (
                "The id of a job.",
                json!({"type": "string", "minLength": 1}),
            ),
        };
        json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
    };
    names.map(parameter).collect()
}

/// The properties of an object, as parameters.
fn query_parameters(schema: &Value) -> Vec<Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let description = schema
            .as_object_mut()
            .and_then(|schema| schema.remove("description"));
        // A parameter is there or not, and never null.
        if let Some(types) = schema["type"].as_array() {
            let one = types.iter().find(|one| *one != "null").cloned();
            schema["type"] = one.unwrap_or_default();
        }
        json!({
            "name": name,
            "in": "query",
            "required": required.contains(&Value::from(name.as_str())),
            "description": description,
            "schema": schema,
        })
    };
    properties.map(parameter).collect()
}

fn success(answer: &Answer, written: &mut SchemaGenerator) -> Value {
    let schema = match answer.schema {
        Some(schema) => schema(written).to_value(),
        None => json!({"type": "object"}),
    };
    let mut described = json!({
        "description": answer.description,
        "content": {"application/json": {"schema": schema}},
    });
    if answer.has_location {
        described["headers"] = json!({
            "Location": {
                "description": "The address of the job.",
                "required": true,
                "schema": {"type": "string"},
            },
        });
    }
    described
}

fn refusal(kind: RefusalKind, written: &mut SchemaGenerator) -> Value {
    let description = match kind {
        RefusalKind::Invalid => "A field, a name or a query is missing, unknown or wrong.",
        RefusalKind::Unauthorized => "No token, or an unknown one.",
        RefusalKind::Forbidden => {
            "The role does not allow it, another site sent the request, a request with a cookie has no `X-CSRF-Token`, or no users are configured."
        }
        RefusalKind::NotFound => "There is no such thing, or no longer.",
        RefusalKind::MethodNotAllowed => "The address has no such method.",
        RefusalKind::CountMismatch => {
            "The job is about another number of messages than `expected_count`."
        }
        RefusalKind::TooLarge => "The body is too long.",
        RefusalKind::UnsupportedMediaType => "The body is not declared as JSON.",
        RefusalKind::TooManyTries => {
            "Too many wrong tokens came from this client: after five, one a second is looked at."
        }
        RefusalKind::Internal => "The service failed.",
        RefusalKind::Unavailable => {
            "The broker cannot be reached, or the service is busy. Try again."
        }
    };
    json!({
        "description": description,
        "content": {PROBLEM: {"schema": written.subschema_for::<Problem>()}},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The targets of all references.
    fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str() {
                        Some(target) if name == "$ref" => {
                            found.insert(target);
                        }
                        _ => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn each_operation_is_described_once_and_each_reference_leads_somewhere() {
        let all = operations();
        let ids: BTreeSet<_> = all.iter().map(|operation| operation.id).collect();
        assert_eq!(ids.len(), all.len());
        let paths = &DOCUMENT["paths"];
        for operation in &all {
            let described = &paths[format!("{ROOT}{}", operation.path)][operation.method];
            assert_eq!(described["operationId"], operation.id);
            let statuses: Vec<_> = operation
                .refusals
                .iter()
                .map(|kind| kind.status())
                .collect();
            let unique: BTreeSet<_> = statuses.iter().collect();
            assert_eq!(statuses.len(), unique.len(), "{}", operation.id);
            let parameters = described["parameters"].as_array();
            for parameter in parameters.into_iter().flatten() {
                assert!(parameter["description"].is_string(), "{parameter}");
                assert!(parameter["schema"]["type"].is_string(), "{parameter}");
            }
        }
        let mut found = BTreeSet::new();
        references(&DOCUMENT, &mut found);
        for target in found {
            let there = DOCUMENT.pointer(target.strip_prefix('#').unwrap());
            assert!(there.is_some(), "{target}");
        }
    }

    #[test]
    fn a_job_is_described_with_all_its_fields_and_no_others() {
        let jobs = DOCUMENT["components"]["schemas"]["NewJob"]["oneOf"].as_array();
        let jobs = jobs.expect("one for each action");
        assert_eq!(jobs.len(), 9);
        for job in jobs {
            assert_eq!(job["additionalProperties"], false, "{job}");
            assert!(job["properties"]["action"]["const"].is_string(), "{job}");
        }
    }
}
