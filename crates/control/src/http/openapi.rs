//! The OpenAPI description of the API, generated from the handlers.
//!
//! What all operations have in common is added here: their failures, dry runs, idempotency keys,
//! authentication, and the characters that texts must not contain.

use std::collections::BTreeMap;

use api::types::Problem;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::security::{SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::{Tag, TagBuilder};
use utoipa::openapi::{
    Components, ContentBuilder, HeaderBuilder, InfoBuilder, LicenseBuilder, OpenApi, Ref, RefOr,
    Required, Response, ResponseBuilder,
};

use super::principal::{IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_BYTES_MAX};
use super::volumes::TagFilter;

/// Creations whose answer can be repeated under an idempotency key.
const REPEATABLE: [&str; 9] = [
    "create_volume",
    "create_snapshot",
    "create_attachment",
    "create_project",
    "create_grant",
    "create_user",
    "create_host",
    "create_daemon",
    "add_key",
];

/// Changes without a dry run: only a host or a unit knows whether they are possible, or nothing can
/// be checked in advance.
const NO_DRY_RUN: [&str; 9] = [
    "join",
    "renew_certificate",
    "add_unit",
    "add_key",
    "export_volume",
    "unexport_volume",
    "invite_user",
    "invite_host",
    "invite_daemon",
];

/// Operations that need no certificate.
const PUBLIC: [&str; 2] = ["authority", "join"];

/// Operations that fail if the units do not have enough free space.
const NEEDS_SPACE: [&str; 2] = ["create_volume", "grow_volume"];

/// Reads that fail with a conflict if the object is in the wrong state.
const CONFLICTING_READS: [&str; 1] = ["read_events"];

/// The name of the authentication scheme.
const CERTIFICATE: &str = "client certificate";

/// The groups of operations, in the order in which they are shown.
const TAGS: [(&str, &str); 14] = [
    (
        "volumes",
        "Virtual disks. Creating or cloning one writes a row, whatever its size.",
    ),
    (
        "snapshots",
        "Named states of volumes, from which volumes can be cloned. They outlive their volume.",
    ),
    (
        "attachments",
        "Volumes on hosts: plugged into a VM there, or exported over NBD. An attachment is \
         a desired state; its own state is what the host reported last.",
    ),
    (
        "chains",
        "Filters between a volume and its users, as its owner defines them. They are exchanged \
         while the volume is in use.",
    ),
    (
        "images",
        "Volumes whose blocks hosts cache once for all their clones, in an area of their caches \
         for images.",
    ),
    (
        "audits",
        "Which bytes of a volume an attacker reads who has compromised some units.",
    ),
    (
        "projects",
        "Projects to which volumes are charged, and their limits.",
    ),
    (
        "grants",
        "Rights on objects of other users: volumes, snapshots, hosts.",
    ),
    (
        "identity",
        "The caller, joining a cluster, and the audit log.",
    ),
    ("users", "The users of volumes. For administrators."),
    (
        "hosts",
        "The machines on which volumes are attached. For administrators.",
    ),
    (
        "daemons",
        "The daemons that serve units to hosts. For administrators.",
    ),
    (
        "units",
        "Where blocks are stored, and the state of the cluster. For administrators.",
    ),
    (
        "keys",
        "The keys that wrap volumes' data keys; no controller sees them. For administrators.",
    ),
];

/// The pattern of every text in a request: no NUL characters.
const TEXT: &str = r"^[^\u0000]*$";

/// The failures of a request: the name of the response, its status, and its meaning.
const PROBLEMS: [(&str, &str, &str); 13] = [
    (
        "BadRequest",
        "400",
        "`invalid_argument`: the request is invalid; `field` names the field.",
    ),
    (
        "Unauthenticated",
        "401",
        "`unauthenticated`: the certificate belongs to no known party, or none was presented.",
    ),
    (
        "Forbidden",
        "403",
        "`forbidden`: the caller does not have the right; `quota_exceeded`: a limit of a project, \
         a user or a volume is reached.",
    ),
    (
        "NotFound",
        "404",
        "`not_found`: the object does not exist, or the caller may not see it.",
    ),
    (
        "Conflict",
        "409",
        "`already_exists`: the name is taken; `conflict`: the object's state does not allow the \
         request; `idempotency_conflict`: the key was used for another request.",
    ),
    (
        "BodyTooLong",
        "413",
        "`invalid_argument`: the body has more than 2 MiB.",
    ),
    (
        "UrlTooLong",
        "414",
        "`invalid_argument`: the URL has more than 8192 bytes.",
    ),
    (
        "NotJson",
        "415",
        "`invalid_argument`: the content type is not `application/json`.",
    ),
    (
        "NotTheType",
        "422",
        "`invalid_argument`: the body is JSON with other fields or types than described.",
    ),
    (
        "Internal",
        "500",
        "`internal`: a bug in Scree; the controller's log has the details.",
    ),
    (
        "Unavailable",
        "503",
        "`unavailable`: a needed component, such as the host, does not answer. The request may \
         have been carried out, or may still be: check before repeating it.",
    ),
    (
        "NoCapacity",
        "507",
        "`no_capacity`: the units do not have enough free space.",
    ),
    (
        "NoSuchMethod",
        "405",
        "`invalid_argument`: the path does not support the method; `Allow` lists those it supports.",
    ),
];

/// The part of the description that no handler adds.
pub(super) fn base_document() -> OpenApi {
    #[derive(utoipa::OpenApi)]
    #[openapi(components(schemas(Problem, TagFilter)))]
    struct Scree;

    Scree::openapi()
}

/// Adds what all operations have in common.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Scree")
        .version("1")
        .license(Some(
            LicenseBuilder::new()
                .name("Apache-2.0 OR MIT")
                .identifier(Some("Apache-2.0 OR MIT"))
                .build(),
        ))
        .description(Some(
            "Virtual disks for virtual machines. A client presents a certificate of the cluster's \
             authority (TLS 1.3). Objects are named by NAME, OWNER/NAME or id. A failure is a \
             problem document (RFC 9457) with a stable `code`. Every answer has the id of its \
             request in `X-Request-Id`. Unknown parameters and fields of a \
             request are refused; fields and enum values may be added to answers.",
        ))
        .build();
    document.servers = None;
    document.tags = Some(
        TAGS.map(|(name, description)| tag(name, description))
            .into(),
    );
    let certificate = "The certificate of a user (docs/reference/api.md).".to_owned();
    let components = document.components.get_or_insert_with(Components::new);
    components.add_security_scheme(
        CERTIFICATE,
        SecurityScheme::MutualTls {
            description: Some(certificate),
            extensions: None,
        },
    );
    reference_page_items(&mut components.schemas);
    describe_texts(&mut components.schemas);
    require_one_field(&mut components.schemas, "RestoreVolume");
    for (name, _, description) in PROBLEMS {
        let response = RefOr::T(problem(description));
        components.responses.insert(name.to_owned(), response);
    }
    document.security = Some(vec![SecurityRequirement::new(CERTIFICATE, [""; 0])]);
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations_mut(item) {
            complete_operation(path, method, operation);
        }
    }
    document
}

/// Requires at least one field of an object. (utoipa 5.5 writes `max_properties` for
/// `min_properties`.)
fn require_one_field(schemas: &mut BTreeMap<String, RefOr<Schema>>, name: &str) {
    if let Some(RefOr::T(Schema::Object(object))) = schemas.get_mut(name) {
        object.min_properties = Some(1);
    }
}

/// Describes each text in a request body as [`TEXT`] unless it has a more precise description.
/// Request bodies are the schemas without unknown fields.
fn describe_texts(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    for schema in schemas.values_mut() {
        let RefOr::T(Schema::Object(body)) = schema else {
            continue;
        };
        let is_closed = matches!(
            body.additional_properties.as_deref(),
            Some(AdditionalProperties::FreeForm(false))
        );
        if is_closed {
            body.properties.values_mut().for_each(describe_text);
        }
    }
}

fn describe_text(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = schema else {
        return;
    };
    let is_text = match &object.schema_type {
        SchemaType::Type(one) => *one == Type::String,
        SchemaType::Array(some) => some.contains(&Type::String),
        SchemaType::AnyValue => false,
    };
    if is_text && object.pattern.is_none() && object.enum_values.is_none() {
        object.pattern = Some(TEXT.to_owned());
    }
}

/// Replaces the inlined items of pages by references to their schemas.
fn reference_page_items(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    for (name, schema) in schemas {
        let (Some(item), RefOr::T(Schema::Object(page))) = (name.strip_prefix("Page_"), schema)
        else {
            continue;
        };
        let items = ArrayBuilder::new()
            .items(Ref::from_schema_name(item))
            .description(Some("The items of this page."));
        page.properties.insert("items".to_owned(), items.into());
    }
}

/// The operations of a path, with their methods.
pub(super) fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    let all = [
        ("GET", &item.get),
        ("PUT", &item.put),
        ("POST", &item.post),
        ("DELETE", &item.delete),
    ];
    all.into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let all = [
        ("GET", &mut item.get),
        ("PUT", &mut item.put),
        ("POST", &mut item.post),
        ("DELETE", &mut item.delete),
    ];
    all.into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn tag(name: &str, description: &str) -> Tag {
    TagBuilder::new()
        .name(name)
        .description(Some(description))
        .build()
}

fn problem(description: &str) -> Response {
    ResponseBuilder::new()
        .description(description)
        .header(
            "X-Request-Id",
            HeaderBuilder::new()
                .description(Some("The id of the request, as in the problem."))
                .schema(ObjectBuilder::new().schema_type(Type::String))
                .build(),
        )
        .content(
            "application/problem+json",
            ContentBuilder::new()
                .schema(Some(RefOr::Ref(Ref::from_schema_name("Problem"))))
                .build(),
        )
        .build()
}

/// The statuses that an operation may fail with.
fn failure_statuses(path: &str, method: &str, operation: &Operation) -> Vec<&'static str> {
    let id = operation.operation_id.as_deref().unwrap_or_default();
    let mut statuses = vec!["400", "414", "500", "503"];
    if !PUBLIC.contains(&id) {
        statuses.extend(["401", "403"]);
    } else if operation.request_body.is_some() {
        statuses.push("401");
    }
    let parameters = operation.parameters.iter().flatten();
    let mut names = parameters.map(|parameter| parameter.name.as_str());
    let refers = names.any(|name| matches!(name, "volume" | "snapshot" | "host"));
    if path.contains('{') || operation.request_body.is_some() || refers {
        statuses.push("404");
    }
    if operation.request_body.is_some() {
        statuses.extend(["413", "415", "422"]);
    }
    if method != "GET" || CONFLICTING_READS.contains(&id) {
        statuses.push("409");
    }
    if NEEDS_SPACE.contains(&id) {
        statuses.push("507");
    }
    statuses
}

fn complete_operation(path: &str, method: &str, operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    for status in failure_statuses(path, method, operation) {
        let (name, ..) = PROBLEMS
            .iter()
            .find(|(_, one, _)| *one == status)
            .expect("PROBLEMS has every status");
        let response = RefOr::Ref(Ref::from_response_name(*name));
        let responses = &mut operation.responses.responses;
        responses.insert(status.to_owned(), response);
    }
    if PUBLIC.contains(&id.as_str()) {
        operation.security = Some(Vec::new());
    }
    let parameters = operation.parameters.get_or_insert_with(Vec::new);
    let schemas = parameters
        .iter_mut()
        .filter_map(|parameter| parameter.schema.as_mut());
    schemas.for_each(describe_text);
    if method != "GET" && !NO_DRY_RUN.contains(&id.as_str()) {
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
            "A request that is repeated with the same key within a day is carried out once. \
             Another request with the key fails with `idempotency_conflict`.",
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
    location: ParameterIn,
    description: &str,
    schema: ObjectBuilder,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(location)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema.build()))
        .build()
}
