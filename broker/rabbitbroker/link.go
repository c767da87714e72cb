package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// link is one connection. The client's calls do not support contexts and may
// block in a write until TCP times out. Therefore link keeps the socket:
// closing it ends all calls.
type link struct {
	conn *amqp.Connection
	raw  net.Conn
	// gone ends with the connection; its cause is the reason.
	gone context.Context
	end  context.CancelCauseFunc

	closing sync.Once
}

// errNoSocket reports a connection that was not made with the socket of the
// broker's config.
var errNoSocket = errors.New("rabbitbroker: the connection was not made by the config's Dial")

// dial opens a connection; ctx bounds all of it, including the handshake.
func dial(ctx context.Context, b *Broker) (*link, error) {
	cfg := b.cfg
	l := &link{}
	l.gone, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	dialer := net.Dialer{Timeout: b.attempt}
	var mu sync.Mutex
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		l.conn, err = b.dial(ctx, amqp.Config{
			Heartbeat: cfg.Heartbeat, Locale: "en_US", Properties: amqp.Table{"product": "waybill", "connection_name": cfg.Name},
			Dial: func(network, address string) (net.Conn, error) {
				raw, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				if l.raw != nil { // of a host that did not answer
					_ = l.raw.Close()
				}
				l.raw = raw
				// The client clears the deadline after the handshake.
				return raw, raw.SetDeadline(time.Now().Add(b.attempt))
			},
		})
	}()
	select {
	case <-done:
	case <-ctx.Done():
		mu.Lock()
		if l.raw != nil {
			_ = l.raw.Close()
		}
		mu.Unlock()
		<-done // closing the socket, or the dialer's context, has ended it
		if err == nil {
			err = errors.Join(context.Cause(ctx), l.conn.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	if l.raw == nil {
		return nil, errors.Join(errNoSocket, l.conn.Close())
	}
	go l.watch(l.conn.NotifyBlocked(make(chan amqp.Blocking, 4)), l.conn.NotifyClose(make(chan *amqp.Error, 1)))
	return l, nil
}

// watch reads the broker's notifications until the connection is closed: an
// unread channel would block the client. A broker that has blocked the
// connection reads nothing from it, not even the end of a channel, so watch
// cuts the connection and the next delivery uses a new one.
func (l *link) watch(blocked <-chan amqp.Blocking, closed <-chan *amqp.Error) {
	for blocked != nil || closed != nil {
		select {
		case b, open := <-blocked:
			if !open {
				blocked = nil
				continue
			}
			if b.Active {
				l.cut(errBlocked)
			}
		case why, open := <-closed:
			if why != nil {
				l.cut(why)
			}
			l.cut(errClosed)
			if !open {
				closed = nil
			}
		}
	}
}

// cut ends the connection immediately, for a reason. After cut returns, no
// caller gets the connection any more.
func (l *link) cut(why error) {
	l.end(why) // the first reason is kept
	l.closing.Do(func() { _ = l.raw.Close() })
}

// until returns a context that ends with ctx or with the connection, whose
// cause is the reason.
func (l *link) until(ctx context.Context) (context.Context, context.CancelFunc) {
	both, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.gone, func() { end(context.Cause(l.gone)) })
	return both, func() {
		stop()
		end(nil)
	}
}

// guard cuts the connection when ctx ends, so that the client's calls end as
// well. The caller must call release. After release returns, this guard has cut
// the connection or never will.
func (l *link) guard(ctx context.Context) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		l.cut(context.Cause(ctx))
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// close closes the connection cleanly, if the broker answers in time.
func (l *link) close(ctx context.Context) error {
	release := l.guard(ctx)
	defer release()
	defer l.cut(errClosed)
	if l.gone.Err() != nil {
		return nil
	}
	if err := l.conn.Close(); err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("rabbitbroker: close: %w", err)
	}
	return nil
}
