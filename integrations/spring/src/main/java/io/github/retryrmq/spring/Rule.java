package io.github.retryrmq.spring;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.regex.Pattern;

/** Another policy for some failures: {@code error=*Timeout* => fixed(5s, retries=3)}. The first rule whose conditions all match decides. */
record Rule(List<Predicate<Failed>> conditions, Policy policy) {

    /** What a rule is asked about: the original routing key, the headers, and the names of the error's types. */
    record Failed(String routingKey, Map<String, Object> headers, List<String> types) {
    }

    static Rule parse(String text) {
        int arrow = text.lastIndexOf("=>");
        if (arrow < 0) {
            throw bad(text, "`=>` is missing");
        }
        List<Predicate<Failed>> conditions = new ArrayList<>();
        for (String condition : text.substring(0, arrow).split(",")) {
            int equals = condition.indexOf('=');
            if (equals < 0) {
                throw bad(text, "`" + condition.trim() + "` has no `=`");
            }
            String name = condition.substring(0, equals).trim();
            String value = condition.substring(equals + 1).trim();
            if (name.equals("routing_key")) {
                Pattern pattern = topic(value);
                conditions.add(failed -> pattern.matcher(failed.routingKey().isEmpty() ? "" : "." + failed.routingKey()).matches());
            } else if (name.equals("error") && !value.isEmpty()) {
                Pattern pattern = glob(value);
                conditions.add(failed -> failed.types().stream().anyMatch(type -> pattern.matcher(type).matches()));
            } else if (name.startsWith("header.") && name.length() > 7) {
                Pattern pattern = glob(value);
                conditions.add(failed -> matches(pattern, failed.headers().get(name.substring(7))));
            } else {
                throw bad(text, "`" + condition.trim() + "` is not a condition");
            }
        }
        return new Rule(conditions, Policy.parse(text.substring(arrow + 2)));
    }

    boolean holds(Failed failed) {
        return conditions.stream().allMatch(condition -> condition.test(failed));
    }

    private static boolean matches(Pattern pattern, Object value) {
        String text = value instanceof Number || value instanceof Boolean ? value.toString() : RetryState.text(value);
        return text != null && pattern.matcher(text).matches();
    }

    /** {@code *} is any text. */
    private static Pattern glob(String pattern) {
        return Pattern.compile(quoted(pattern, "\\*", ".*"), Pattern.DOTALL);
    }

    /** {@code *} is one word, {@code #} any number of words; each word is matched with the dot before it. */
    private static Pattern topic(String pattern) {
        StringBuilder all = new StringBuilder();
        for (String word : pattern.isEmpty() ? new String[0] : pattern.split("\\.", -1)) {
            all.append(word.equals("#") ? "(\\.[^.]*)*" : word.equals("*") ? "\\.[^.]*" : "\\." + Pattern.quote(word));
        }
        return Pattern.compile(all.toString(), Pattern.DOTALL);
    }

    private static String quoted(String pattern, String wildcard, String regex) {
        List<String> parts = new ArrayList<>();
        for (String part : pattern.split(wildcard, -1)) {
            parts.add(part.isEmpty() ? "" : Pattern.quote(part));
        }
        return String.join(regex, parts);
    }

    private static IllegalArgumentException bad(String text, String why) {
        return new IllegalArgumentException("cannot read the rule `" + text + "`: " + why
                + "; write it like routing_key=eu.# => fixed(5s, retries=3), header.kind=invoice => list(1s, 1m) or error=*Timeout => fixed(1s)");
    }
}
