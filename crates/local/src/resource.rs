//! Catalogue of the served kinds: Sahasra's kinds from their definitions, and the built-in kinds that they need.

use std::sync::LazyLock;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Namespace, Node, Secret},
    events::v1::Event as NewEvent,
};
pub(crate) use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition as Column;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;
use serde_json::{Value, json};

use crate::object;
use crate::refusal::{self, FieldError, Refusal};
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
    pub json_schema: Value,
    pub columns: Vec<Column>,
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.behaviour == Behaviour::Custom
    }

    pub(crate) fn has_status(&self) -> bool {
        matches!(self.behaviour, Behaviour::Custom | Behaviour::Namespace | Behaviour::Node)
    }

    pub(crate) fn merge_schema(&self) -> &Schema {
        self.merge_schema.as_ref().unwrap_or(&self.schema)
    }

    pub(crate) fn allows_unconditional_update(&self) -> bool {
        !matches!(self.behaviour, Behaviour::Custom | Behaviour::Lease)
    }

    pub(crate) fn allows_create_on_update(&self) -> bool {
        matches!(self.behaviour, Behaviour::Lease | Behaviour::Event | Behaviour::NewEvent)
    }

    pub(crate) fn about(&self, name: &str) -> StatusDetails {
        refusal::about(&self.group, &self.plural, name)
    }

    /// Error for an invalid object. Like the API server, this error contains the kind instead of the plural.
    pub(crate) fn invalid(&self, name: &str, errors: &[FieldError]) -> Refusal {
        Refusal::invalid(refusal::about(&self.group, &self.kind, name), errors)
    }

    /// Error for a body that is no object of this kind. `kind` is the kind that the body has.
    pub(crate) fn cannot_handle(&self, kind: &str, why: &str) -> Refusal {
        let version = object::quoted(&self.version);
        Refusal::bad_request(format!("{kind} in version {version} cannot be handled as a {}: {why}", self.kind))
    }

    pub(crate) fn not_found(&self, name: &str) -> Refusal {
        Refusal::not_found(self.about(name))
    }

    /// Key of an object in the etcd of a real API server. Some error messages contain this key.
    pub(crate) fn storage_key(&self, namespace: Option<&str>, name: &str) -> String {
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

    pub(crate) fn conflict(&self, name: &str, why: &str) -> Refusal {
        Refusal::conflict(self.about(name), why)
    }
}

/// `group/version`, or the version alone for the group of core kinds.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// Path of all kinds of a group and version, without the slash at the beginning.
pub(crate) fn root_path(group: &str, version: &str) -> String {
    let api = if group.is_empty() { "api" } else { "apis" };
    format!("{api}/{}", group_version(group, version))
}

/// All served kinds. The store keeps objects under the index of their kind, and Events of events.k8s.io under the index of core Events.
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
                let own = version.additional_printer_columns.unwrap_or_default();
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
                    columns: std::iter::once(column("Name", 0, NAME, ".metadata.name")).chain(own).collect(),
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

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<usize> {
        let is = |resource: &Resource| resource.group == group && resource.version == version && resource.plural == plural;
        self.resources.iter().position(is)
    }

    pub(crate) fn of_version(&self, group: &str, version: &str) -> impl Iterator<Item = &Resource> {
        let is = move |resource: &&Resource| resource.group == group && resource.version == version;
        self.resources.iter().filter(is)
    }

    /// Index of the kind that an owner reference names. The version is ignored.
    pub(crate) fn find_kind(&self, api_version: &str, kind: &str) -> Option<usize> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        self.resources
            .iter()
            .position(|resource| resource.group == group && resource.kind == kind)
    }

    /// Index under which the store keeps objects of a kind.
    pub(crate) fn kept_at(&self, resource: usize) -> usize {
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

/// Name, priority and description of a column of a built-in kind.
type BuiltInColumn = (&'static str, i32, &'static str);

const NAME_COLUMN: BuiltInColumn = ("Name", 0, NAME);
const AGE_COLUMN: BuiltInColumn = ("Age", 0, CREATED);
const NODE_COLUMNS: [BuiltInColumn; 10] = [
    NAME_COLUMN,
    ("Status", 0, "The status of the node"),
    ("Roles", 0, "The roles of the node"),
    AGE_COLUMN,
    ("Version", 0, ""),
    ("Internal-IP", 1, ""),
    ("External-IP", 1, ""),
    ("OS-Image", 1, ""),
    ("Kernel-Version", 1, ""),
    ("Container-Runtime", 1, ""),
];
const EVENT_COLUMNS: [BuiltInColumn; 10] = [
    ("Last Seen", 0, ""),
    ("Type", 0, ""),
    ("Reason", 0, ""),
    ("Object", 0, ""),
    ("Subobject", 1, ""),
    ("Source", 1, ""),
    ("Message", 0, ""),
    ("First Seen", 1, ""),
    ("Count", 1, ""),
    ("Name", 1, NAME),
];

fn built_in_resources() -> Vec<Resource> {
    let conditions = [("status.conditions", by_type())];
    let node = [
        ("status.conditions", by_type()),
        ("status.addresses", by_type()),
        ("spec.podCIDRs", json!({"x-kubernetes-list-type": "set"})),
    ];
    let status = ("Status", 0, "The status of the namespace");
    let (kind, data, holder) = (("Type", 0, ""), ("Data", 0, ""), ("Holder", 0, ""));
    vec![
        built_in_resource::<Namespace>(Behaviour::Namespace, "ns", &conditions, &[NAME_COLUMN, status, AGE_COLUMN]),
        built_in_resource::<ConfigMap>(Behaviour::ConfigMap, "cm", &[], &[NAME_COLUMN, data, AGE_COLUMN]),
        built_in_resource::<Secret>(Behaviour::Secret, "", &[], &[NAME_COLUMN, kind, data, AGE_COLUMN]),
        built_in_resource::<Node>(Behaviour::Node, "no", &node, &NODE_COLUMNS),
        built_in_resource::<Lease>(Behaviour::Lease, "", &[], &[NAME_COLUMN, holder, AGE_COLUMN]),
        built_in_resource::<Event>(Behaviour::Event, "ev", &[], &EVENT_COLUMNS),
        built_in_resource::<NewEvent>(Behaviour::NewEvent, "ev", &[], &EVENT_COLUMNS),
    ]
}

fn built_in_resource<T: k8s_openapi::Resource + schemars::JsonSchema>(
    behaviour: Behaviour,
    short_name: &str,
    list_types: &[(&str, Value)],
    columns: &[BuiltInColumn],
) -> Resource {
    let json_schema = built_in::<T>(list_types);
    Resource {
        behaviour,
        group: T::GROUP.to_owned(),
        version: T::VERSION.to_owned(),
        plural: T::URL_PATH_SEGMENT.to_owned(),
        singular: T::KIND.to_lowercase(),
        kind: T::KIND.to_owned(),
        short_names: Some(short_name.to_owned()).filter(|name| !name.is_empty()).into_iter().collect(),
        categories: Vec::new(),
        namespaced: !matches!(behaviour, Behaviour::Namespace | Behaviour::Node),
        schema: Schema::parse(&json_schema, false),
        merge_schema: None,
        json_schema,
        columns: columns
            .iter()
            .map(|(name, priority, description)| column(name, *priority, description, ""))
            .collect(),
    }
}

fn column(name: &str, priority: i32, description: &str, path: &str) -> Column {
    Column {
        name: name.to_owned(),
        type_: "string".to_owned(),
        format: (name == "Name").then(|| "name".to_owned()),
        description: Some(description.to_owned()),
        priority: Some(priority),
        json_path: path.to_owned(),
    }
}

/// Description of the column `Name`, with the API server's text.
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// Description of the column `Age`, with the API server's text.
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

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
