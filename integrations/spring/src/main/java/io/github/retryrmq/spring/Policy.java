package io.github.retryrmq.spring;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * How long a failed message waits, how often, and up to which age: {@code exponential(1s, factor=4, max=5m, retries=5)}. The text is the same in
 * every language of retryrmq.
 */
public final class Policy {

    static final Duration LONGEST = Duration.ofDays(365);
    /** A policy that needs more waiting queues is a mistake. */
    private static final int MOST_DELAYS = 64;
    private static final int MOST_RETRIES = 1_000_000;
    private static final String FORMS = "write fixed(5s), linear(1s, step=2s, max=1m), list(1s, 10s, 1m) or exponential(1s, factor=4, max=5m), "
            + "each with retries=5, jitter=0.2, max_age=1h, age_from=published as needed";
    private static final Pattern TEXT = Pattern.compile("\\s*(\\w+)\\s*\\((.*)\\)\\s*", Pattern.DOTALL);
    private static final Pattern PART = Pattern.compile("([0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(ms|s|m|h|d)\\s*");
    private static final Map<String, Long> NANOS =
            Map.of("ms", 1_000_000L, "s", 1_000_000_000L, "m", 60_000_000_000L, "h", 3_600_000_000_000L, "d", 86_400_000_000_000L);

    private final String text;
    private final String shape;
    private final List<Duration> delays = new ArrayList<>();
    private double factor = 4;
    private Duration step = Duration.ofSeconds(1);
    private Duration max = Duration.ofMinutes(5);
    private int retries = 5;
    private double jitter;
    private Duration maxAge;
    private boolean agesFromPublication;

    /**
     * Reads the text form.
     *
     * @throws IllegalArgumentException with a sentence that says what to change
     */
    public static Policy parse(String text) {
        return new Policy(text);
    }

    private Policy(String text) {
        this.text = text.trim();
        Matcher form = TEXT.matcher(text);
        if (!form.matches()) {
            throw bad("it is not of the form shape(…)");
        }
        shape = form.group(1);
        Map<String, String> named = new HashMap<>();
        for (String argument : form.group(2).split(",")) {
            argument = argument.trim();
            int equals = argument.indexOf('=');
            if (equals >= 0) {
                String name = argument.substring(0, equals).trim();
                if (named.put(name, argument.substring(equals + 1).trim()) != null) {
                    throw bad("`" + name + "` is given twice");
                }
            } else if (!argument.isEmpty()) {
                if (!named.isEmpty()) {
                    throw bad("put `" + argument + "` before the named values");
                }
                delays.add(duration(argument));
            }
        }
        if (delays.isEmpty()) {
            throw bad("its first delay is missing");
        }
        if (!List.of("fixed", "linear", "list", "exponential").contains(shape)) {
            throw bad("`" + shape + "` is not a known policy");
        }
        if (shape.equals("list")) {
            retries = delays.size();
        } else if (delays.size() > 1) {
            throw bad("`" + shape + "` takes one delay");
        }
        named.forEach(this::set);
        check();
    }

    private void set(String name, String value) {
        boolean fits = switch (name) {
            case "max" -> shape.equals("linear") || shape.equals("exponential");
            case "step" -> shape.equals("linear");
            case "factor" -> shape.equals("exponential");
            default -> true;
        };
        if (!fits) {
            throw bad("this kind of policy has no `" + name + "`");
        }
        try {
            switch (name) {
                case "retries" -> retries = Integer.parseUnsignedInt(value);
                case "jitter" -> jitter = Double.parseDouble(value);
                case "factor" -> factor = Double.parseDouble(value);
                case "max" -> max = duration(value);
                case "step" -> step = duration(value);
                case "max_age" -> maxAge = duration(value);
                case "age_from" -> {
                    if (!List.of("published", "first-failure").contains(value)) {
                        throw bad("`age_from` must be first-failure or published");
                    }
                    agesFromPublication = value.equals("published");
                }
                default -> throw bad("there is no option `" + name + "`");
            }
        } catch (NumberFormatException notANumber) {
            throw bad("`" + name + "=" + value + "` is not a valid number");
        }
    }

    private void check() {
        List<Duration> bounded = new ArrayList<>(delays);
        if (shape.equals("linear") || shape.equals("exponential")) {
            bounded.add(max);
            if (delays.get(0).compareTo(max) > 0) {
                throw bad("its first delay is longer than `max`; raise `max` (default 5m) or lower the first delay");
            }
        }
        if (bounded.stream().anyMatch(delay -> delay.compareTo(Duration.ofMillis(1)) < 0 || delay.compareTo(LONGEST) > 0)) {
            throw bad("delays must be 1ms to 365d");
        }
        if (!(factor == 1 || factor >= 1.001 && Double.isFinite(factor))) {
            throw bad("`factor` must be 1, or a number of at least 1.001");
        }
        if (retries < 0 || retries > MOST_RETRIES) {
            throw bad("`retries` must be at most " + MOST_RETRIES);
        }
        if (!(jitter >= 0 && jitter <= 0.9)) {
            throw bad("`jitter` must be between 0 and 0.9");
        }
        if (maxAge != null && maxAge.isZero()) {
            throw bad("`max_age` must be longer than 0");
        }
        if (delays().size() > MOST_DELAYS) {
            throw bad("it needs more than " + MOST_DELAYS + " waiting queues; raise `factor` or `step`, or lower `max`");
        }
    }

    private IllegalArgumentException bad(String why) {
        return new IllegalArgumentException("cannot read the retry policy `" + text + "`: " + why + "; " + FORMS);
    }

    private Duration duration(String value) {
        try {
            return parseDuration(value);
        } catch (IllegalArgumentException unreadable) {
            throw bad(unreadable.getMessage());
        }
    }

    /** Reads {@code 250ms}, {@code 1.5s} or {@code 1h30m}. */
    static Duration parseDuration(String value) {
        Matcher part = PART.matcher(value.trim());
        Duration total = Duration.ZERO;
        int end = 0;
        while (part.find() && part.start() == end && end < value.length()) {
            var nanos = new java.math.BigDecimal(part.group(1)).multiply(java.math.BigDecimal.valueOf(NANOS.get(part.group(2))));
            var seconds = nanos.divideToIntegralValue(java.math.BigDecimal.valueOf(1_000_000_000));
            if (seconds.compareTo(java.math.BigDecimal.valueOf(32_000_000_000L)) > 0) {
                throw new IllegalArgumentException("the duration `" + value + "` is longer than a thousand years");
            }
            total = total.plusSeconds(seconds.longValue())
                    .plusNanos(nanos.remainder(java.math.BigDecimal.valueOf(1_000_000_000)).setScale(0, java.math.RoundingMode.HALF_UP).longValue());
            end = part.end();
        }
        if (end == 0 || end < value.trim().length()) {
            throw new IllegalArgumentException("cannot read the duration `" + value + "`; write it like 250ms, 1s, 5m or 1h30m");
        }
        return total;
    }

    /** The delay before retry number {@code retry} (1 is the first) in milliseconds; {@code draw} is any random number and chooses the jitter. */
    long delay(int retry, int draw) {
        return spread(base(retry))[Math.floorMod(draw, 3)];
    }

    private long base(int retry) {
        int steps = retry - 1;
        Duration delay = switch (shape) {
            case "linear" -> min(delays.get(0).plus(step.multipliedBy(steps)), max);
            case "list" -> delays.get(Math.min(steps, delays.size() - 1));
            case "exponential" -> {
                double seconds = Math.min(seconds(delays.get(0)) * Math.pow(factor, steps), seconds(max));
                yield Duration.ofSeconds((long) seconds, Math.round((seconds - Math.floor(seconds)) * 1e9));
            }
            default -> delays.get(0);
        };
        return ceilMillis(delay);
    }

    private long[] spread(long delay) {
        if (jitter == 0) {
            return new long[] {delay, delay, delay};
        }
        return new long[] {Math.max(1, Math.round(delay * (1 - jitter))), Math.max(1, Math.round(delay * (1 - jitter / 2))), delay};
    }

    /** Every delay of this policy in milliseconds: each has its own waiting queue. If there are too many, only some of them. */
    SortedSet<Long> delays() {
        SortedSet<Long> all = new TreeSet<>();
        int last = Math.min(retries, shape.equals("list") ? delays.size() : shape.equals("fixed") ? 1 : MOST_RETRIES);
        long longest = ceilMillis(max);
        for (int retry = 1; retry <= last && all.size() <= MOST_DELAYS; retry++) {
            long delay = base(retry);
            for (long each : spread(delay)) {
                all.add(each);
            }
            boolean grows = !shape.equals("exponential") && !shape.equals("linear") || delay < longest && factor != 1 && !step.isZero();
            if (!grows) {
                break;
            }
        }
        return all;
    }

    int retries() {
        return retries;
    }

    Duration maxAge() {
        return maxAge;
    }

    boolean agesFromPublication() {
        return agesFromPublication;
    }

    /** A delay for people, with the largest unit that leaves no remainder. */
    static String show(long millis) {
        for (String unit : List.of("d", "h", "m", "s")) {
            long length = NANOS.get(unit) / 1_000_000;
            if (millis >= length && millis % length == 0) {
                return millis / length + unit;
            }
        }
        return millis + "ms";
    }

    static long ceilMillis(Duration delay) {
        return delay.toMillis() + (delay.getNano() % 1_000_000 > 0 ? 1 : 0);
    }

    private static double seconds(Duration delay) {
        return delay.getSeconds() + delay.getNano() / 1e9;
    }

    private static Duration min(Duration one, Duration other) {
        return one.compareTo(other) < 0 ? one : other;
    }

    /** The shortest delay step that is not shorter than {@code millis}; for delays that a listener chooses. */
    static long delayStep(long millis) {
        long[] r10 = {100, 125, 160, 200, 250, 320, 400, 500, 630, 800};
        for (long power = 1;; power *= 10) {
            for (long hundredths : r10) {
                long step = (hundredths * power + 99) / 100;
                if (step >= millis) {
                    return step;
                }
            }
        }
    }

    @Override
    public String toString() {
        return text;
    }
}
