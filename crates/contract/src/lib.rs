//! Required behaviour of a control plane for Sahasra, as test cases that use only [`kube::Client`].
//!
//! [`contract!`] generates a test for each case. The embedded control plane (`crates/local/tests`) and a real kube-apiserver
//! (`e2e/tests/contract.rs`) run the same cases. Where they differ, the embedded one is wrong. Cases panic on unexpected behaviour, and
//! compare messages that users see exactly.
//!
//! [`metrics`] and [`options`] contain what the metrics and the command line of every process must fulfil.

// Cases are tests: they may unwrap, and their names describe the expectation.
#![allow(clippy::unwrap_used, clippy::result_large_err)]

pub mod applies;
pub mod bounds;
pub mod deletion;
pub mod lists;
pub mod metrics;
pub mod objects;
pub mod options;
pub mod owners;
pub mod patches;
pub mod reviews;
pub mod statuses;
pub mod subject;
pub mod validation;
pub mod watches;

pub use subject::Subject;

/// Generates a test for every case. `$subject` is an async function without arguments that returns a value that dereferences to a
/// [`Subject`] with its own namespace.
#[macro_export]
macro_rules! contract {
    ($subject:ident) => {
        $crate::cases! { $subject =>
            objects: [
                a_created_object_gets_an_identity,
                a_name_in_use_is_rejected,
                a_name_is_generated_from_a_prefix,
                an_object_without_a_name_is_rejected,
                a_wrong_name_is_rejected_with_the_rule,
                a_name_has_at_most_253_characters,
                wrong_labels_are_rejected,
                an_object_is_not_created_in_a_missing_namespace,
                the_namespace_of_object_and_request_must_agree,
                a_missing_object_is_not_found,
                a_replacement_needs_the_last_version,
                a_replacement_without_version_is_rejected_for_own_kinds,
                a_replacement_without_version_is_accepted_for_config_maps,
                the_name_of_object_and_request_must_agree,
                a_write_that_changes_nothing_keeps_the_version,
                generation_counts_changes_of_the_spec_only,
                a_dry_run_stores_nothing,
                a_uid_cannot_change,
                a_secret_keeps_text_as_data,
                an_immutable_config_map_stays_as_it_is,
                a_lease_can_be_made_by_a_replacement,
                events_of_both_groups_are_the_same_objects,
                unknown_paths_are_not_found,
                an_unparsable_body_is_rejected,
                a_new_object_cannot_have_a_version,
                a_config_map_of_the_maximum_size_is_accepted,
                a_config_map_that_is_too_large_is_rejected,
                doubles_are_kept_to_the_last_bit,
            ],
            deletion: [
                deletion_answers_with_the_uid,
                a_finalizer_holds_an_object_until_it_is_dropped,
                deletion_counts_as_a_generation,
                no_finalizer_is_added_once_deletion_began,
                the_last_finalizer_dropped_by_a_replacement_deletes,
                deletion_with_another_uid_is_rejected,
                deletion_with_another_version_is_rejected,
                a_dry_run_deletes_nothing,
                a_collection_is_deleted_by_label,
                a_namespace_is_deleted_with_its_content,
                a_lasting_namespace_cannot_be_deleted,
                the_name_of_an_object_that_is_being_deleted_is_in_use,
                an_unknown_propagation_is_rejected,
            ],
            owners: [
                dependents_are_deleted_with_their_owner,
                dependents_of_dependents_are_deleted,
                a_dependent_with_two_owners_stays_with_the_other,
                a_dependent_of_a_missing_owner_is_deleted,
                a_dependent_of_another_uid_is_deleted,
                a_dependents_finalizer_holds_it,
                orphans_stay_without_their_reference,
                foreground_deletion_waits_for_blocking_dependents,
                an_owner_reference_without_uid_is_rejected,
                two_controllers_are_rejected,
            ],
            lists: [
                labels_select,
                fields_select,
                fields_that_cannot_be_selected_by_are_rejected,
                pages_follow_each_other,
                a_list_is_finished_as_it_began,
                a_broken_continue_token_is_rejected,
                a_broken_label_selector_is_rejected,
                only_metadata_can_be_listed,
            ],
            watches: [
                a_watch_shows_changes_after_a_version,
                a_watch_from_version_zero_begins_with_the_existing_objects,
                a_watch_resumes_at_its_last_version,
                a_watch_selects_by_label_as_labels_change,
                a_watch_of_a_version_that_is_forgotten_expires,
                a_watch_ends_in_time_with_a_bookmark_before,
                a_streamed_list_ends_with_a_bookmark,
                a_deletion_has_a_version_of_its_own,
                the_last_update_of_finalizers_is_seen_as_a_deletion,
                a_reflector_follows,
            ],
            patches: [
                a_merge_patch_removes_null_fields,
                a_merge_patch_with_an_old_version_conflicts,
                a_merge_patch_without_changes_keeps_the_version,
                a_merge_patch_of_a_missing_object_is_rejected,
                a_json_patch_tests_and_changes,
                a_failing_json_patch_is_rejected,
                a_strategic_patch_of_an_own_kind_is_rejected,
                a_strategic_patch_adds_to_finalizers,
                an_unknown_kind_of_patch_is_rejected,
                a_patch_cannot_rename,
                only_metadata_can_be_patched,
            ],
            statuses: [
                a_new_object_has_no_status,
                a_write_to_the_object_leaves_the_status,
                a_write_to_the_status_leaves_the_rest,
                a_place_in_a_list_may_be_empty,
                a_status_can_be_replaced,
                a_field_left_out_by_a_replaced_status_is_removed,
                a_json_patch_of_the_status_with_an_old_version_is_rejected,
                a_status_write_counts_no_generation,
                a_wrong_status_is_rejected,
                a_term_only_grows,
                a_status_with_a_condition_twice_is_rejected,
            ],
            applies: [
                an_apply_creates_a_missing_object,
                an_apply_of_the_same_configuration_changes_nothing,
                appliers_share_an_object,
                an_apply_that_would_change_anothers_field_conflicts,
                force_takes_over_a_field,
                fields_that_are_no_longer_applied_are_removed,
                fields_that_another_manager_applies_stay,
                a_patch_takes_over_applied_fields,
                writes_note_their_manager,
                conditions_are_merged_by_type,
                finalizers_are_a_set,
                an_apply_without_manager_is_rejected,
                an_apply_of_unknown_fields_is_rejected,
                an_apply_is_validated,
                an_apply_with_managed_fields_is_rejected,
                an_apply_can_be_yaml,
            ],
            reviews: [
                a_caller_may_review_its_own_access,
                a_review_of_no_or_two_actions_is_rejected,
                reviews_are_not_kept,
            ],
            bounds: [the_bounds_of_every_range_are_accepted_and_values_beyond_are_rejected,],
            validation: [
                defaults_are_filled_in,
                null_is_replaced_by_the_default,
                unknown_fields_are_dropped,
                unknown_fields_are_rejected_when_asked,
                a_missing_field_is_rejected,
                a_wrong_type_is_rejected,
                an_integer_beyond_64_bits_is_rejected,
                a_whole_float_is_stored_as_an_integer,
                a_number_that_is_no_integer_is_rejected_for_a_built_in_kind,
                null_in_a_map_of_strings_is_empty,
                a_value_out_of_bounds_is_rejected,
                a_value_outside_the_enumeration_is_rejected,
                a_text_of_the_wrong_length_is_rejected,
                a_list_of_the_wrong_length_is_rejected,
                several_mistakes_are_reported_together,
                a_rule_rejects_with_field_and_message,
                a_rule_of_a_nested_item_names_its_place,
                a_parameter_that_is_not_declared_is_named,
                a_burst_without_chunks_is_told_its_cause_alone,
                a_rule_of_a_map_value_names_its_key,
                a_required_reason_is_reported_as_such,
                rules_wait_until_the_schema_is_kept,
                an_immutable_field_is_forbidden_to_change,
                mutable_fields_can_be_changed,
                a_wrong_type_in_a_built_in_kind_is_a_bad_request,
                wrong_data_keys_are_rejected,
            ],
        }
    };
}

/// Helper macro for [`contract!`].
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    ($subject:ident => $($module:ident: [$($case:ident),* $(,)?]),* $(,)?) => {
        $(mod $module {
            $(#[tokio::test]
            async fn $case() {
                let subject = super::$subject().await;
                $crate::$module::$case(&subject).await;
            })*
        })*
    };
}
