package pgstore

import (
	"testing"

	"github.com/waybillhq/waybill"
)

func TestChunks(t *testing.T) {
	large := waybill.Event{Payload: make([]byte, 1<<20)}
	for _, tc := range []struct {
		name string
		evs  []waybill.Event
		want []int
	}{
		{"one", make([]waybill.Event, 1), []int{1}},
		{"as many as fit", make([]waybill.Event, chunkEvents), []int{chunkEvents}},
		{"one more", make([]waybill.Event, chunkEvents+1), []int{chunkEvents, 1}},
		{"large ones", []waybill.Event{large, large, large, large, large, large, large, large, large}, []int{8, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sizes []int
			for _, chunk := range chunks(tc.evs) {
				sizes = append(sizes, len(chunk))
			}
			if len(sizes) != len(tc.want) {
				t.Fatalf("got chunks of %v, want %v", sizes, tc.want)
			}
			for i := range sizes {
				if sizes[i] != tc.want[i] {
					t.Errorf("got chunks of %v, want %v", sizes, tc.want)
				}
			}
		})
	}
}
