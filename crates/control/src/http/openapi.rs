//! The API's description, made from the handlers themselves.
//!
//! What is true of every operation is added here, once: how it fails, that a
//! change can be tried, and that a creation can be repeated.

use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{
    ContentBuilder, HttpMethod, InfoBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder,
};

use super::asking::{IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_BYTES_MAX};

/// Creations of which something can be shown again.
const REPEATABLE: [&str; 8] = [
    "create_volume",
    "create_snapshot",
    "create_attachment",
    "create_project",
    "create_grant",
    "create_user",
    "create_host",
    "add_key",
];

/// Changes that cannot be tried: only somebody else knows whether they can be
/// made, or they are none of the kind.
const NEVER_DRY: [&str; 8] = [
    "enrol",
    "renew_certificate",
    "add_unit",
    "add_key",
    "export_volume",
    "unexport_volume",
    "invite_user",
    "invite_host",
];

/// Adds what is true of every operation.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Scree")
        .version("1")
        .description(Some(
            "Virtual disks for virtual machines. A client shows a certificate of the cluster's \
             authority (TLS 1.3). Names may be written OWNER/NAME; ids serve as well. A failure is \
             a problem document (RFC 9457) with a stable `code`.",
        ))
        .build();
    document.servers = None;
    for item in document.paths.paths.values_mut() {
        let operations = [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Put, &mut item.put),
            (HttpMethod::Post, &mut item.post),
            (HttpMethod::Delete, &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                complete_operation(&method, operation);
            }
        }
    }
    document
}

fn complete_operation(method: &HttpMethod, operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    let problem = ResponseBuilder::new()
        .description("A problem document")
        .content(
            "application/problem+json",
            ContentBuilder::new()
                .schema(Some(RefOr::Ref(Ref::from_schema_name("Problem"))))
                .build(),
        )
        .build();
    let responses = &mut operation.responses.responses;
    responses.insert("default".to_owned(), RefOr::T(problem));
    let parameters = operation.parameters.get_or_insert_with(Vec::new);
    if *method != HttpMethod::Get && !NEVER_DRY.contains(&id.as_str()) {
        parameters.push(parameter(
            "dry_run",
            ParameterIn::Query,
            "Check everything and change nothing.",
            ObjectBuilder::new().schema_type(Type::Boolean),
        ));
    }
    if REPEATABLE.contains(&id.as_str()) {
        parameters.push(parameter(
            IDEMPOTENCY_KEY,
            ParameterIn::Header,
            "The same request under the same key, within a day, makes nothing twice. Another \
             request is `idempotency-conflict`.",
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some("^[!-~]+$"))
                .min_length(Some(1))
                .max_length(Some(IDEMPOTENCY_KEY_BYTES_MAX)),
        ));
    }
}

fn parameter(
    name: &str,
    place: ParameterIn,
    description: &str,
    schema: ObjectBuilder,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema.build()))
        .build()
}
