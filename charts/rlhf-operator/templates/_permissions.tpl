{{/* What the operator may do, and nothing else: tests/api_server/oldest/chart/test_rbac.py compares it with what the operator does. */}}

{{/* Where jobs are: in all namespaces, or in each of `watchNamespaces`. Server-side apply of a new object needs create and patch. */}}
{{- define "rlhf-operator.jobRules" -}}
- apiGroups: [rlhf.dev]
  resources: [rlhfjobs]
  verbs: [list, watch, delete]
- apiGroups: [rlhf.dev]
  resources: [rlhfjobs/status, rlhfjobs/scale]
  verbs: [patch]
- apiGroups: [rlhf.dev]
  resources: [rlhfruntimes]
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, create, patch]
# GPUs that pods claim from a DeviceClass, and devices that they claim otherwise, to count GPUs.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [list, create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get]
# Written, never read.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# Gangs of Kubernetes, Volcano and scheduler-plugins' coscheduling.
- apiGroups: [scheduling.k8s.io, scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, create, patch]
# Queues of Kueue.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}

{{/* Of the whole cluster; with `watchNamespaces` there are no rights beyond those, unless `rbac.clusterReads` is set. */}}
{{- define "rlhf-operator.clusterRules" -}}
- apiGroups: [rlhf.dev]
  resources: [clusterrlhfruntimes]
  verbs: [get]
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
# Of pods, for the priority of their job's Workload.
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}

{{/* In the operator's own namespace: its Lease. A name cannot limit `create`. */}}
{{- define "rlhf-operator.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [rlhf-operator]
  verbs: [get, update]
{{- end }}

{{/* Of tokens that come with requests for /metrics: whose they are, and whether that account may get it. */}}
{{- define "rlhf-operator.reviewRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
