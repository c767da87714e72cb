// Package metrics holds, in its tests, the page docs/metrics.md, the alert rules and the dashboard in deploy/ against what is really exported to
// Prometheus. It is a module of its own because Prometheus' query language comes with much of Prometheus.
package metrics
