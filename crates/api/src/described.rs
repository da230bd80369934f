//! OpenAPI schemas that are more precise than derived ones.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::types::{TAG_KEY_LENGTH_MAX, TAG_VALUE_LENGTH_MAX, TAGS_MAX};
use crate::vm::VM_LENGTH_MAX;

/// Describes [`Tags`](crate::types::Tags).
pub struct TagsSchema;

impl ToSchema for TagsSchema {
    fn name() -> Cow<'static, str> {
        "Tags".into()
    }
}

impl PartialSchema for TagsSchema {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let key = text()
            .min_length(Some(1))
            .max_length(Some(TAG_KEY_LENGTH_MAX))
            .pattern(Some(r"^[^=\u0000-\u001f\u007f-\u009f]+$"));
        let value = text()
            .max_length(Some(TAG_VALUE_LENGTH_MAX))
            .pattern(Some(r"^[^\u0000-\u001f\u007f-\u009f]*$"));
        let tags = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(
                "Tags by which objects are found. Keys contain no `=`.",
            ))
            .max_properties(Some(TAGS_MAX))
            .property_names(Some(key))
            .additional_properties(Some(value));
        tags.into()
    }
}

/// Describes a [`VmAddress`](crate::vm::VmAddress).
pub struct VmSchema;

impl VmSchema {
    /// `qmp:` and a normalized absolute path; or `libvirt:` and a name that is not an option.
    const PATTERN: &str = concat!(
        r"^(qmp:(/(\.{0,2}[^./\u0000-\u001f\u007f-\u009f][^/\u0000-\u001f\u007f-\u009f]*",
        r"|\.{3}[^/\u0000-\u001f\u007f-\u009f]*))+",
        r"|libvirt:[^-\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*)$"
    );
}

impl ToSchema for VmSchema {
    fn name() -> Cow<'static, str> {
        "VmAddress".into()
    }
}

impl PartialSchema for VmSchema {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(
                "A running VM: `qmp:/path/to/its/socket` or `libvirt:NAME`.",
            ))
            .max_length(Some(VM_LENGTH_MAX))
            .pattern(Some(Self::PATTERN))
            .examples(["qmp:/run/vm1.qmp"])
            .into()
    }
}

/// Describes a block size.
pub struct BlockSizeSchema;

impl ToSchema for BlockSizeSchema {
    fn name() -> Cow<'static, str> {
        "BlockSize".into()
    }
}

impl PartialSchema for BlockSizeSchema {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .description(Some("The size of a block in bytes."))
            .enum_values(Some([4096, 8192, 16384, 32768, 65536]))
            .into()
    }
}
