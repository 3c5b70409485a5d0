package orders

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func post(fake *retryrmqtest.FakeClient) int {
	answer := httptest.NewRecorder()
	Routes(fake.Conn).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"id": 7}`)))
	return answer.Code
}

func TestAnAcceptedOrderIsPublished(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	if status := post(fake); status != http.StatusAccepted {
		t.Errorf("the status is %d", status)
	}
	published := fake.Published()
	if len(published) != 1 || published[0].RoutingKey != "orders" || string(published[0].Body) != `{"id": 7}` {
		t.Errorf("%+v", published)
	}
}

func TestWithoutABrokerTheClientShallTryAgain(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	fake.SetPublishError(retryrmq.ErrUnreachable)
	if status := post(fake); status != http.StatusServiceUnavailable {
		t.Errorf("the status is %d", status)
	}
}

func TestAnOrderIsShippedAtTheSecondAttempt(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	go func() { _ = Ship(t.Context(), fake.Conn) }()
	result, err := fake.Deliver(t.Context(), "orders", retryrmq.Publishing{Body: []byte(`{"id": 7}`)}) // waits for the consumer
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Acked()) != 1 || result.Elapsed != time.Minute || fake.Published()[0].RoutingKey != "shipped" {
		t.Errorf("%+v", result)
	}
}
