//! Catalogue of the served kinds: Sahasra's kinds from their definitions, and the built-in kinds that they need.

use std::sync::LazyLock;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Namespace, Node, Secret},
    events::v1::Event as NewEvent,
};
use serde_json::{Value, json};

use crate::refusal::{About, FieldError, Refusal};
use crate::schema::{Schema, built_in};

/// Behaviour of a kind, apart from its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Custom,
    ConfigMap,
    Secret,
    Namespace,
    Node,
    Lease,
    /// Kind of core/v1.
    Event,
    /// Kind of events.k8s.io/v1: another view of the same objects.
    NewEvent,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    /// 0 for columns that are always shown. Columns with a higher priority are shown only with `-o wide`.
    pub priority: i64,
    /// JSONPath of a column of a custom resource definition; empty for a built-in kind.
    pub path: String,
}

#[derive(Debug)]
pub(crate) struct Resource {
    pub behaviour: Behaviour,
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub schema: Schema,
    /// Schema that includes the fields of `metadata`, for merging. Absent if `schema` includes them.
    merge_schema: Option<Schema>,
    /// `schema` as JSON, for OpenAPI.
    pub json_schema: Value,
    pub columns: Vec<Column>,
}

impl Resource {
    /// `group/version`, or `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn is_custom(&self) -> bool {
        self.behaviour == Behaviour::Custom
    }

    pub fn has_status(&self) -> bool {
        matches!(self.behaviour, Behaviour::Custom | Behaviour::Namespace | Behaviour::Node)
    }

    pub fn merge_schema(&self) -> &Schema {
        self.merge_schema.as_ref().unwrap_or(&self.schema)
    }

    /// Whether a PUT without a resource version replaces the current object.
    pub fn allows_unconditional_update(&self) -> bool {
        !matches!(self.behaviour, Behaviour::Custom | Behaviour::Lease)
    }

    /// Whether a PUT creates an object that does not exist.
    pub fn allows_create_on_update(&self) -> bool {
        matches!(self.behaviour, Behaviour::Lease | Behaviour::Event | Behaviour::NewEvent)
    }

    /// Identification of an object in errors.
    pub fn about(&self, name: &str) -> About {
        About {
            group: self.group.clone(),
            kind: self.plural.clone(),
            name: name.to_owned(),
        }
    }

    /// Error for an invalid object. Like the API server, this error contains the kind instead of the plural.
    pub fn invalid(&self, name: &str, errors: Vec<FieldError>) -> Refusal {
        let about = About {
            kind: self.kind.clone(),
            ..self.about(name)
        };
        Refusal::Invalid { about, errors }
    }

    pub fn not_found(&self, name: &str) -> Refusal {
        Refusal::NotFound { about: self.about(name) }
    }

    /// Key of an object in the etcd of a real API server. Some error messages contain this key.
    pub fn storage_key(&self, namespace: Option<&str>, name: &str) -> String {
        let plural = match self.behaviour {
            Behaviour::Custom => format!("{}/{}", self.group, self.plural),
            Behaviour::Node => "minions".to_owned(),
            _ => self.plural.clone(),
        };
        match namespace {
            Some(namespace) => format!("/registry/{plural}/{namespace}/{name}"),
            None => format!("/registry/{plural}/{name}"),
        }
    }

    pub fn conflict(&self, name: &str, why: impl Into<String>) -> Refusal {
        Refusal::Conflict {
            about: self.about(name),
            why: why.into(),
        }
    }
}

/// All served kinds. The store keeps objects under the index of their kind, and Events of events.k8s.io under the index of core Events.
#[derive(Debug)]
pub(crate) struct Catalogue {
    pub resources: Vec<Resource>,
    /// Schema of `metadata`, which custom resource definitions omit.
    pub metadata: Schema,
    pub metadata_json: Value,
}

pub(crate) const NAMESPACES: usize = 0;
/// Index of core Events, which also contains the Events of events.k8s.io.
pub(crate) const EVENTS: usize = 5;

/// The catalogue. Built once per process, because compiling the rules takes a while.
pub(crate) fn catalogue() -> &'static Catalogue {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::build);
    &CATALOGUE
}

impl Catalogue {
    fn build() -> Self {
        let mut resources = built_in_resources();
        debug_assert_eq!(resources[NAMESPACES].behaviour, Behaviour::Namespace);
        debug_assert_eq!(resources[EVENTS].behaviour, Behaviour::Event);
        let metadata_json = resources[NAMESPACES].json_schema["properties"]["metadata"].clone();
        for definition in sahasra_crds::definitions() {
            let names = definition.spec.names;
            for version in definition.spec.versions {
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
                let json_schema = serde_json::to_value(schema).unwrap_or_default();
                let columns = version.additional_printer_columns.unwrap_or_default();
                let columns = columns.into_iter().map(|column| Column {
                    name: column.name,
                    kind: column.type_,
                    format: column.format.unwrap_or_default(),
                    description: column.description.unwrap_or_default(),
                    priority: column.priority.unwrap_or_default().into(),
                    path: column.json_path,
                });
                resources.push(Resource {
                    behaviour: Behaviour::Custom,
                    group: definition.spec.group.clone(),
                    version: version.name,
                    plural: names.plural.clone(),
                    singular: names.singular.clone().unwrap_or_default(),
                    kind: names.kind.clone(),
                    short_names: names.short_names.clone().unwrap_or_default(),
                    categories: names.categories.clone().unwrap_or_default(),
                    namespaced: definition.spec.scope == "Namespaced",
                    schema: with_type_and_metadata(&json_schema, None),
                    merge_schema: Some(with_type_and_metadata(&json_schema, Some(&metadata_json))),
                    columns: columns.collect(),
                    json_schema,
                });
            }
        }
        Self {
            resources,
            metadata: Schema::parse(&metadata_json, false),
            metadata_json,
        }
    }

    /// Index of the kind at `/apis/{group}/{version}/{plural}`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<usize> {
        let is = |resource: &Resource| resource.group == group && resource.version == version && resource.plural == plural;
        self.resources.iter().position(is)
    }

    /// Index of the kind that an owner reference names. The version is ignored.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<usize> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        self.resources
            .iter()
            .position(|resource| resource.group == group && resource.kind == kind)
    }

    /// Index under which the store keeps objects of a kind.
    pub fn kept_at(&self, resource: usize) -> usize {
        if self.resources[resource].behaviour == Behaviour::NewEvent {
            EVENTS
        } else {
            resource
        }
    }
}

/// The schema of a definition with `apiVersion`, `kind` and `metadata` added. If `metadata` is `None`, all fields of the metadata are
/// accepted, because they are validated separately.
fn with_type_and_metadata(schema: &Value, metadata: Option<&Value>) -> Schema {
    let mut schema = schema.clone();
    let is_whole = metadata.is_some();
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = json!({"type": "string"});
    }
    let unknown = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    schema["properties"]["metadata"] = metadata.cloned().unwrap_or(unknown);
    // Only the schema without the fields of `metadata` has rules and defaults.
    Schema::parse(&schema, !is_whole)
}

fn by_type() -> Value {
    json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
}

fn built_in_resources() -> Vec<Resource> {
    let conditions = [("status.conditions", by_type())];
    let node = [
        ("status.conditions", by_type()),
        ("status.addresses", by_type()),
        ("spec.podCIDRs", json!({"x-kubernetes-list-type": "set"})),
    ];
    let column = |name: &str, kind: &str, priority: i64, description: &str| Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: if name == "Name" { "name".to_owned() } else { String::new() },
        description: description.to_owned(),
        priority,
        path: String::new(),
    };
    let name = || column("Name", "string", 0, NAME);
    let age = || column("Age", "string", 0, CREATED);
    let make = |behaviour, group_version: (&str, &str), names: [&str; 4], namespaced, json_schema: Value, columns| Resource {
        behaviour,
        group: group_version.0.to_owned(),
        version: group_version.1.to_owned(),
        plural: names[0].to_owned(),
        singular: names[1].to_owned(),
        kind: names[2].to_owned(),
        short_names: names[3].split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        categories: Vec::new(),
        namespaced,
        schema: Schema::parse(&json_schema, false),
        merge_schema: None,
        json_schema,
        columns,
    };
    let events = || {
        vec![
            column("Last Seen", "string", 0, ""),
            column("Type", "string", 0, ""),
            column("Reason", "string", 0, ""),
            column("Object", "string", 0, ""),
            column("Subobject", "string", 1, ""),
            column("Source", "string", 1, ""),
            column("Message", "string", 0, ""),
            column("First Seen", "string", 1, ""),
            column("Count", "string", 1, ""),
            column("Name", "string", 1, NAME),
        ]
    };
    let core = ("", "v1");
    vec![
        make(
            Behaviour::Namespace,
            core,
            ["namespaces", "namespace", "Namespace", "ns"],
            false,
            built_in::<Namespace>(&conditions),
            vec![name(), column("Status", "string", 0, "The status of the namespace"), age()],
        ),
        make(
            Behaviour::ConfigMap,
            core,
            ["configmaps", "configmap", "ConfigMap", "cm"],
            true,
            built_in::<ConfigMap>(&[]),
            vec![name(), column("Data", "string", 0, ""), age()],
        ),
        make(
            Behaviour::Secret,
            core,
            ["secrets", "secret", "Secret", ""],
            true,
            built_in::<Secret>(&[]),
            vec![name(), column("Type", "string", 0, ""), column("Data", "string", 0, ""), age()],
        ),
        make(
            Behaviour::Node,
            core,
            ["nodes", "node", "Node", "no"],
            false,
            built_in::<Node>(&node),
            vec![
                name(),
                column("Status", "string", 0, "The status of the node"),
                column("Roles", "string", 0, "The roles of the node"),
                age(),
                column("Version", "string", 0, ""),
                column("Internal-IP", "string", 1, ""),
                column("External-IP", "string", 1, ""),
                column("OS-Image", "string", 1, ""),
                column("Kernel-Version", "string", 1, ""),
                column("Container-Runtime", "string", 1, ""),
            ],
        ),
        make(
            Behaviour::Lease,
            ("coordination.k8s.io", "v1"),
            ["leases", "lease", "Lease", ""],
            true,
            built_in::<Lease>(&[]),
            vec![name(), column("Holder", "string", 0, ""), age()],
        ),
        make(
            Behaviour::Event,
            core,
            ["events", "event", "Event", "ev"],
            true,
            built_in::<Event>(&[]),
            events(),
        ),
        make(
            Behaviour::NewEvent,
            ("events.k8s.io", "v1"),
            ["events", "event", "Event", "ev"],
            true,
            built_in::<NewEvent>(&[]),
            events(),
        ),
    ]
}

/// Description of the column `Name`, with the API server's text.
pub(crate) const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// Description of the column `Age`, with the API server's text.
pub(crate) const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_served_and_its_rules_compile() {
        let catalogue = catalogue();
        for kind in ["GpuWorker", "VramLease", "GpuSession", "BurstJob"] {
            let index = catalogue.find_kind("sahasra.dev/v1alpha1", kind).expect(kind);
            let resource = &catalogue.resources[index];
            assert!(resource.is_custom() && resource.has_status(), "{kind}");
            assert!(resource.schema.properties["spec"].rules.is_some(), "{kind}");
            assert!(resource.categories.contains(&"sahasra".to_owned()));
        }
    }

    #[test]
    fn built_in_schemas_are_inlined_and_know_their_fields() {
        let catalogue = catalogue();
        let lease = &catalogue.resources[catalogue.find("coordination.k8s.io", "v1", "leases").expect("leases")];
        assert!(lease.schema.properties["spec"].properties.contains_key("renewTime"));
        assert!(catalogue.metadata.properties["ownerReferences"].items.is_some());
        for resource in &catalogue.resources {
            assert!(!resource.json_schema.to_string().contains("$ref"), "{}", resource.kind);
        }
    }
}
