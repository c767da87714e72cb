package redisbroker

import (
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

// Failures returns the failure table of Redis, as the package comment and
// docs/brokers.md show it.
func Failures() driver.Failures {
	return driver.Failures{
		{
			Name:  "OOM, MISCONF, LOADING, MASTERDOWN, READONLY, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, BUSY, UNKILLABLE, max number of clients",
			Class: waybill.ClassUnavailable, Scope: "broker", Why: "the server accepts no writes now",
			Match: func(err error) bool {
				return replies(err, "OOM", "MISCONF", "LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "UNKILLABLE") ||
					says(err, "max number of clients")
			},
		},
		{
			Name: "MOVED, ASK", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the stream's slot moves to another node of the cluster",
			Match: func(err error) bool { return replies(err, "MOVED", "ASK") },
		},
		{
			Name: "NOAUTH, WRONGPASS", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the account is at fault, not the event",
			Match: func(err error) bool { return replies(err, "NOAUTH", "WRONGPASS") },
		},
		{
			Name: "NOPERM, WRONGTYPE", Class: waybill.ClassUnavailable, Scope: "topic",
			Why:   "the account has no write access, or the key is not a stream",
			Match: func(err error) bool { return replies(err, "NOPERM", "WRONGTYPE") },
		},
		{
			Name: "bulk length", Class: waybill.ClassPermanent, Why: "larger than proto-max-bulk-len",
			Match: func(err error) bool { return says(err, "bulk length") },
		},
		driver.Unreachable(driver.IsAny(redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted)),
	}
}

// reply returns the server's answer, if there is one.
func reply(err error) (string, bool) {
	var answer redis.Error
	if err == nil || errors.Is(err, redis.Nil) || !errors.As(err, &answer) {
		return "", false
	}
	return answer.Error(), true
}

// replies reports whether the server's answer begins with one of the codes.
func replies(err error, codes ...string) bool {
	text, ok := reply(err)
	if !ok {
		return false
	}
	first, _, _ := strings.Cut(text, " ")
	return slices.Contains(codes, first)
}

// says reports whether the server's answer contains a text; some answers have
// no code of their own.
func says(err error, text string) bool {
	answer, ok := reply(err)
	return ok && strings.Contains(answer, text)
}
