package io.github.retryrmq.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

import org.junit.jupiter.api.Test;

class PolicyTest {

    private static List<Long> delays(String text) {
        Policy policy = Policy.parse(text);
        return IntStream.rangeClosed(1, policy.retries()).mapToObj(retry -> policy.delay(retry, 2)).toList();
    }

    @Test
    void eachShapeHasItsDelays() {
        assertThat(delays("exponential(1s)")).containsExactly(1_000L, 4_000L, 16_000L, 64_000L, 256_000L);
        assertThat(delays("exponential(250ms, factor=2, max=1s, retries=4)")).containsExactly(250L, 500L, 1_000L, 1_000L);
        assertThat(delays("linear(1s, step=2s, max=4s, retries=3)")).containsExactly(1_000L, 3_000L, 4_000L);
        assertThat(delays("fixed(1h30m, retries=2)")).containsExactly(5_400_000L, 5_400_000L);
        assertThat(delays("list(1s, 1.5s)")).containsExactly(1_000L, 1_500L);
        assertThat(delays("list(1s, 2s, retries=3)")).containsExactly(1_000L, 2_000L, 2_000L);
        assertThat(delays("fixed(1.2ms, max_age=1d, age_from=published, retries=1)")).containsExactly(2L);
    }

    @Test
    void jitterMakesThreeQueues() {
        assertThat(Policy.parse("fixed(1s, jitter=0.2)").delays()).containsExactly(800L, 900L, 1_000L);
        assertThat(Policy.parse("exponential(1s)").delays()).containsExactly(1_000L, 4_000L, 16_000L, 64_000L, 256_000L);
        assertThat(Policy.parse("fixed(1s, retries=0)").delays()).isEmpty();
    }

    @Test
    void whatCannotBeReadSaysWhatToChange() {
        Map.of("sometimes", "shape(…)", "fixed()", "first delay", "fixed(1s, 2s)", "takes one delay", "fixed(1)", "250ms", "fixed(1s, factor=2)",
                "no `factor`", "fixed(1s, retries=many)", "not a valid number", "exponential(10m)", "raise `max`", "linear(1s, step=1ms, retries=100)",
                "waiting queues",
                "often(1s)", "not a known policy", "fixed(1s, colour=red)", "no option `colour`")
                .forEach((text, says) -> assertThatThrownBy(() -> Policy.parse(text)).as(text).isInstanceOf(IllegalArgumentException.class)
                        .hasMessageContaining(says));
        assertThatThrownBy(() -> Rule.parse("colour=red => fixed(1s)")).hasMessageContaining("not a condition");
    }

    @Test
    void rulesLookAtKeyHeaderAndError() {
        Rule.Failed failed = new Rule.Failed("eu.orders.new", Map.of("kind", "invoice", "n", 7), List.of("java.io.IOException", "IOException"));
        assertThat(Rule.parse("routing_key=eu.#, error=*IOException => fixed(1s)").holds(failed)).isTrue();
        assertThat(Rule.parse("routing_key=*.orders.* => fixed(1s)").holds(failed)).isTrue();
        assertThat(Rule.parse("routing_key=eu.* => fixed(1s)").holds(failed)).isFalse();
        assertThat(Rule.parse("header.kind=inv*, header.n=7 => fixed(1s)").holds(failed)).isTrue();
        assertThat(Rule.parse("error=Timeout => fixed(1s)").holds(failed)).isFalse();
    }

    @Test
    void fingerprintsAndDelayStepsAreThoseOfTheContract() {
        assertThat(Failure.fingerprint("Timeout", "connect to 10.0.0.7:5432")).isEqualTo("36567b941ac2e6b8");
        assertThat(Failure.fingerprint("", "")).isEqualTo("af63c74c8601c8dd");
        assertThat(List.of(Policy.delayStep(1), Policy.delayStep(2), Policy.delayStep(11), Policy.delayStep(1_000), Policy.delayStep(1_001)))
                .containsExactly(1L, 2L, 13L, 1_000L, 1_250L);
    }
}
