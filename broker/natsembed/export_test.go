package natsembed

import "github.com/nats-io/nats-server/v2/server"

// JetStream returns the JetStream configuration of the running server.
func (s *Server) JetStream() *server.JetStreamConfig { return s.server.JetStreamConfig() }
