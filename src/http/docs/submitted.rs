//! The task of a submit in the document: as it was created, or ended during the wait of its caller.

use utoipa::openapi::schema::{Discriminator, RefBuilder, Schema};
use utoipa::openapi::{Components, ObjectBuilder, OneOfBuilder, Ref, RefOr, Type};

/// Distinguishes the two forms by status. Some client generators take the first form whose fields are present, and
/// others narrow the status of the named schema, so the second form has a name of its own beside `Task`.
pub(super) fn describe(components: &mut Components) {
    let name = |schema| Ref::from_schema_name(schema);
    let Some(RefOr::T(Schema::Object(mut ended))) = components.schemas.get("Task").cloned() else { return };
    ended.description = Some("A task that has ended, as submitting returns it to a caller who waited.".into());
    let status = RefBuilder::new().ref_location_from_schema_name("EndedStatus");
    let status = status.description(Some("`completed` or `failed`.")).build();
    ended.properties.insert("status".into(), RefOr::Ref(status));
    let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["completed", "failed"]));
    let words = words.description(Some("The state of a task that has ended.")).build();
    let forms = [("processing", "CreatedTask"), ("completed", "EndedTask"), ("failed", "EndedTask")];
    let forms = forms.map(|(status, schema)| (status, name(schema).ref_location));
    let either = OneOfBuilder::new()
        .item(name("CreatedTask"))
        .item(name("EndedTask"))
        .discriminator(Some(Discriminator::with_mapping("status", forms)))
        .description(Some(
            "The task of a submit: as it was created or, if it ended during the wait that `Prefer` asked for, whole.",
        ))
        .build();
    for (name, schema) in
        [("EndedTask", Schema::Object(ended)), ("EndedStatus", words.into()), ("SubmittedTask", either.into())]
    {
        components.schemas.insert(name.into(), RefOr::T(schema));
    }
}
