//! Representations of objects: complete, metadata only, or as a table.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::events;
use crate::list::Page;
use crate::object;
use crate::resource::{Behaviour, Resource, catalogue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    Metadata,
    Table,
}

/// Representation of the objects of one kind for one request.
#[derive(Clone, Debug)]
pub(crate) struct View {
    resource: usize,
    form: Form,
    /// Parameter `includeObject` of a table: the part of each object that its row includes.
    pub include_object: String,
    pub now: jiff::Timestamp,
}

impl View {
    /// Chooses the first supported representation in the header `Accept`.
    pub(crate) fn choose(resource: usize, accept: &str, include_object: &str, now: jiff::Timestamp) -> Self {
        let known = accept.split(',').find_map(|media| {
            let parts: Vec<&str> = media.split(';').map(str::trim).collect();
            if !matches!(parts.first(), Some(&"application/json" | &"*/*" | &"application/*" | &"")) {
                return None;
            }
            let wanted = parts.iter().find_map(|part| part.strip_prefix("as="));
            let is_v1 = !parts.iter().any(|part| part.starts_with("v=") && *part != "v=v1");
            match wanted {
                None => Some(Form::Whole),
                Some("Table") if is_v1 => Some(Form::Table),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") if is_v1 => Some(Form::Metadata),
                Some(_) => None,
            }
        });
        Self {
            resource,
            form: known.unwrap_or(Form::Whole),
            include_object: include_object.to_owned(),
            now,
        }
    }

    pub(crate) fn resource(&self) -> &'static Resource {
        &catalogue().resources[self.resource]
    }

    /// API version and kind of an object in this representation.
    fn type_names(&self) -> (String, &str) {
        match self.form {
            Form::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
            _ => (self.resource().api_version(), &self.resource().kind),
        }
    }

    pub(crate) fn object(&self, object: &Value) -> Value {
        match self.form {
            Form::Whole => self.whole(object),
            Form::Metadata => object::only_metadata(object),
            Form::Table => self.table(
                std::slice::from_ref(&self.whole(object)),
                json!({"resourceVersion": object["metadata"]["resourceVersion"]}),
            ),
        }
    }

    pub(crate) fn list(&self, page: &Page) -> Value {
        let shown = |object: &Arc<Value>| match self.form {
            Form::Metadata => object::only_metadata(object),
            _ => self.whole(object),
        };
        let items: Vec<Value> = page.items.iter().map(shown).collect();
        if self.form == Form::Table {
            return self.table(&items, json!(page.metadata));
        }
        let (api_version, kind) = self.type_names();
        json!({"apiVersion": api_version, "kind": format!("{kind}List"), "metadata": page.metadata, "items": items})
    }

    pub(crate) fn bookmark(&self, revision: u64, ends_initial: bool) -> Value {
        if self.form == Form::Table {
            return self.table(&[], json!({"resourceVersion": revision.to_string()}));
        }
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (api_version, kind) = self.type_names();
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata})
    }

    /// The object under the kind and version of the request.
    fn whole(&self, object: &Value) -> Value {
        let resource = self.resource();
        let mut shown = object.clone();
        if resource.behaviour == Behaviour::NewEvent {
            events::from_core(&mut shown);
        } else if resource.behaviour == Behaviour::Event {
            shown["apiVersion"] = json!("v1");
        }
        shown
    }
}
