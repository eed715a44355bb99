"""Fields and manifests that people bring, and what Argo, quotas and accounts refuse late."""

from __future__ import annotations

from tests.reports.table import Kind, Row

KINDS = (
    Kind(
        "Fields that were dropped or refused",
        "A field that people know from Kubernetes or another program is kept, or refused with the reason.",
        (
            Row(
                "kubeflow (suspend), kueue",
                "`suspend: true`",
                "a warning, and the job started",
                "created suspended",
                "test_fields.py::test_a_job_with_suspend_is_created_suspended",
            ),
            Row(
                "kueue#3125, jobset#1186, trainer#3258, argo#848",
                "`activeDeadlineSeconds`",
                "refused: did you mean startDeadlineSeconds?",
                "a limit of the run time, with the reason DeadlineExceeded; the queue does not count",
                "test_fields.py::test_the_time_in_the_queue_is_no_run_time",
            ),
            Row(
                "kueue#3125",
                "the same of a job that loses its place and gets another one",
                "refused",
                "the times of its rounds are added, without the time between them",
                "test_fields.py::test_the_run_times_of_all_rounds_and_workflows_are_added_without_the_time_between_them",
            ),
            Row(
                "jobset#1186",
                "the same of one task",
                "refused",
                "the job ends, and says which task",
                "test_fields.py::test_a_task_that_runs_for_too_long_ends_the_job",
            ),
            Row(
                "trainer#2200",
                "`restartPolicy: OnFailure` of a template",
                "dropped without a word",
                "a warning that says what follows instead",
                "test_fields.py::test_the_restart_policy_of_a_template_is_answered",
            ),
            Row(
                "trainer#2200",
                "`hostname`, `subdomain` of a template, and fields that Argo drops",
                "dropped without a word",
                "refused with the reason",
                "test_fields.py::test_what_a_template_cannot_set_is_refused_with_the_reason",
            ),
            Row(
                "volcano#778",
                "`hostNetwork` without `dnsPolicy`",
                "host names did not resolve",
                "ClusterFirstWithHostNet",
                "test_fields.py::test_pods_on_the_network_of_their_node_find_each_other_by_name",
            ),
            Row(
                "argo, Kubernetes (generateName)",
                "`metadata.generateName`",
                "refused",
                "a new name each time, which submit prints",
                "test_fields.py::test_generate_name_makes_a_new_name_each_time",
            ),
            Row(
                "kubeflow, argo",
                "a PyTorchJob, a Workflow and others given to lint",
                "kind: must be DIJob",
                "what it is, and the way over",
                "test_fields.py::test_a_manifest_of_another_program_is_named_with_the_way_over",
            ),
            Row(
                "kueue#3125",
                "a field in the wrong place, as `activeDeadlineSeconds` beside a template",
                "another field of similar spelling was suggested",
                "an error that says where it belongs",
                "test_fields.py::test_an_unknown_field_of_a_task_is_an_error_that_says_where_it_belongs",
            ),
        ),
    ),
    Kind(
        "Quotas, security and accounts",
        "What would be refused, or fail, later is said before the job begins, or by doctor.",
        (
            Row(
                "restricted namespaces",
                "a container that states only `readOnlyRootFilesystem`",
                "nothing was added, and its pods were refused",
                "what the profile needs is added field by field",
                "test_fields.py::test_what_a_restricted_namespace_needs_is_added_field_by_field",
            ),
            Row(
                "argo#15203, #15016, #12398",
                "an account without rights on workflowtaskresults",
                "accepted; the training ran again until backoffLimit was used up",
                "said at submit",
                "test_fields.py::test_an_account_that_cannot_report_to_argo_is_named_before_the_job_begins",
            ),
            Row(
                "kubeflow/pipelines#3594",
                "a priorityClassName that does not exist",
                "accepted, pods forbidden later",
                "said at submit",
                "test_fields.py::test_a_priority_class_that_does_not_exist_is_named_before_the_job_begins",
            ),
            Row(
                "argo#5515, #8539, #13722, #3445",
                "workflowDefaults, failedPodRestart",
                "doctor was silent",
                "doctor names what hurts jobs, and why",
                "test_fields.py::test_doctor_names_what_in_argos_configuration_hurts_jobs",
            ),
            Row(
                "deployKF#228, argo#6424, #1096",
                "a quota on limits, and Argo's containers have none",
                "each pod was refused, which used up backoffLimit",
                "doctor says which setting of Argo",
                "test_fields.py::test_doctor_says_what_of_argos_containers_a_quota_needs",
            ),
        ),
    ),
)
