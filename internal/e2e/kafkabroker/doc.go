// Package kafkabroker tests broker/kafkabroker against a real server and
// against a cluster inside the process that can be made to fail. The tests are
// here because only they require that cluster and the administration client.
package kafkabroker
