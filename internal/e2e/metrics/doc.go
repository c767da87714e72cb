// Package metrics tests docs/metrics.md, the alert rules and the dashboard in
// deploy/ against the metrics exported to Prometheus. It is a module of its own
// because Prometheus's query language brings in much of Prometheus.
package metrics
