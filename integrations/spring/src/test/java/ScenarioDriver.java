import java.io.PrintStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.LoggerContext;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.AppenderBase;
import io.github.retryrmq.spring.Defer;
import io.github.retryrmq.spring.Park;
import io.github.retryrmq.spring.RetryAfter;
import io.github.retryrmq.spring.RetryOptions;
import io.github.retryrmq.spring.Retryrmq;
import org.slf4j.LoggerFactory;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageProperties;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.context.support.GenericApplicationContext;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Plays scenarios with a listener container of Spring: the driver contract of {@code tests/scenarios/README.md}. {@code simple} or {@code direct} says
 * which container. In the default package, so that the names of its errors are those in the scenarios.
 */
final class ScenarioDriver {

    private static final List<String> CAN = List.of("error", "error_type", "fatal", "retry_after", "park", "defer", "panic", "exit", "rules", "declare",
            "crash_limit", "defer_limit", "no_park", "wrapped_park", "log", "whole_headers", "refused");
    private static final JsonMapper JSON = new JsonMapper();
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static boolean done;

    private final Map<String, Integer> runs = new ConcurrentHashMap<>();
    private final JsonNode steps;

    private ScenarioDriver(JsonNode order) {
        steps = order.get("handler");
        order.get("runs").properties().forEach(run -> runs.put(run.getKey(), run.getValue().intValue()));
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        JsonNode order = JSON.readTree(System.in);
        switch (order.get("task").stringValue()) {
            // A direct container does not give up when it cannot start: it says why in the log, and tries again.
            case "describe" -> say("driver", Map.of("name", "spring-" + arguments[0], "can",
                    CAN.stream().filter(word -> !word.equals("refused") || arguments[0].equals("simple")).toList()));
            case "consume" -> consume(order, arguments[0].equals("direct"));
            default -> throw new IllegalArgumentException("unknown task");
        }
    }

    private static synchronized void say(String line, Map<String, ?> keys) {
        if (!done) {
            done = line.equals("done");
            Map<String, Object> all = new HashMap<>(keys);
            all.put("line", line);
            OUT.println(JSON.writeValueAsString(all));
        }
    }

    private static void consume(JsonNode order, boolean direct) throws Exception {
        var loggers = (LoggerContext) LoggerFactory.getILoggerFactory();
        loggers.getLogger(org.slf4j.Logger.ROOT_LOGGER_NAME).setLevel(Level.WARN);
        Told told = new Told();
        told.setContext(loggers);
        told.start();
        loggers.getLogger(Retryrmq.class).setLevel(Level.DEBUG);
        loggers.getLogger(Retryrmq.class).addAppender(told);
        JsonNode given = order.get("consume");
        var connection = new CachingConnectionFactory(java.net.URI.create(order.get("url").stringValue()));
        String queue = order.get("queue").stringValue();
        ScenarioDriver driver = new ScenarioDriver(order);
        GenericApplicationContext context = new GenericApplicationContext();
        try {
            RetryOptions options = options(given);
            context.registerBean(Retryrmq.class, () -> new Retryrmq(options));
            context.registerBean(ConnectionFactory.class, () -> connection);
            if (given.path("declare").asBoolean(true) && new RabbitAdmin(connection).getQueueInfo(queue) == null) {
                new RabbitAdmin(connection).declareQueue(Retryrmq.workQueue(queue));
            }
            int concurrency = given.path("concurrency").asInt(1);
            int prefetch = Math.max(1, given.path("prefetch").asInt(250) / concurrency);
            if (direct) {
                context.registerBean(DirectMessageListenerContainer.class, () -> {
                    var container = new DirectMessageListenerContainer(connection);
                    container.setForceStop(true);
                    container.setConsumersPerQueue(concurrency);
                    container.setPrefetchCount(prefetch);
                    container.setQueueNames(queue);
                    container.setShutdownTimeout(30_000);
                    container.setMessageListener(driver::handle);
                    return container;
                });
            } else {
                context.registerBean(SimpleMessageListenerContainer.class, () -> {
                    var container = new SimpleMessageListenerContainer(connection);
                    container.setForceStop(true);
                    container.setConcurrentConsumers(concurrency);
                    container.setPrefetchCount(prefetch);
                    container.setQueueNames(queue);
                    container.setShutdownTimeout(30_000);
                    container.setMessageListener(driver::handle);
                    return container;
                });
            }
            context.refresh();
        } catch (RuntimeException refused) {
            Throwable root = refused;
            while (root.getCause() != null) {
                root = root.getCause();
            }
            String why = String.valueOf(root.getMessage());
            String code = why.contains("the retry policy") || why.contains("the rule") ? "invalid_policy"
                    : why.contains("do not exist") ? "queue_not_found" : "invalid_option";
            say("refused", Map.of("code", code, "message", why));
            Runtime.getRuntime().halt(0);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            // Closing alone would wait for ten seconds, and then close the connections.
            context.getBeansOfType(AbstractMessageListenerContainer.class).values().forEach(AbstractMessageListenerContainer::stop);
            context.close();
            say("done", Map.of());
            Runtime.getRuntime().halt(0);
        }));
        say("ready", Map.of());
        new CountDownLatch(1).await();
    }

    private static RetryOptions options(JsonNode given) {
        RetryOptions options = new RetryOptions().dlx(given.path("dlx").asBoolean(false)).park(given.path("park").asBoolean(true))
                .declare(given.path("declare").asBoolean(true)).fatal(List.of(Hopeless.class));
        options = given.has("retry") ? options.retry(given.get("retry").stringValue()) : options;
        options = given.has("rules")
                ? options.rules(given.get("rules").valueStream().map(JsonNode::stringValue).toArray(String[]::new)) : options;
        options = given.has("crash_limit") ? options.crashLimit(given.get("crash_limit").intValue()) : options;
        return given.has("defer_limit") ? options.deferLimit(given.get("defer_limit").intValue()) : options;
    }

    private void handle(Message message) {
        MessageProperties properties = message.getMessageProperties();
        Object marked = properties.getHeader("scenario-id");
        String id = marked == null ? String.valueOf(properties.getMessageId()) : marked.toString();
        int run = runs.merge(id, 1, Integer::sum);
        JsonNode all = steps.path(id);
        JsonNode step = all.isEmpty() ? JSON.createObjectNode().put("do", "ok") : all.get(Math.min(run, all.size()) - 1);
        Map<String, Object> attempt = new HashMap<>(Map.of("id", id, "run", run, "at_ms", System.currentTimeMillis()));
        attempt.put("attempt", properties.getRetryCount() + 1);
        attempt.put("retries", properties.getRetryCount());
        attempt.put("queue", properties.getConsumerQueue());
        attempt.put("exchange", properties.getReceivedExchange());
        attempt.put("routing_key", properties.getReceivedRoutingKey());
        attempt.put("message_id", properties.getMessageId());
        attempt.put("redelivered", properties.getRedelivered());
        attempt.put("last_error", properties.getRetryCount() > 0 ? properties.getHeader("x-retry-error") : null);
        attempt.put("headers", plain(properties.getHeaders()));
        attempt.put("body_bytes", message.getBody().length);
        attempt.put("body_sha256", HexFormat.of().formatHex(sha256(message.getBody())));
        say("attempt", attempt);
        sleep(step.path("sleep_ms").asLong(0));
        String what = step.get("do").stringValue();
        if (what.equals("exit")) {
            Runtime.getRuntime().halt(9);
        }
        say("settled", Map.of("id", id, "run", run, "at_ms", System.currentTimeMillis()));
        String text = step.path("message").asString("");
        switch (what) {
            case "error" -> throw switch (step.path("type").asString("Error")) {
                case "Timeout" -> new Timeout(text);
                case "ReadTimeout" -> new ReadTimeout(text);
                case "Broken" -> new Broken(text);
                default -> new Error(text);
            };
            case "fatal" -> throw new Hopeless(text);
            case "retry_after" -> throw new RetryAfter(Duration.ofMillis(step.get("delay_ms").longValue()), text);
            case "park" -> throw step.has("within") ? new IllegalStateException(step.get("within").stringValue(), new Park(step.get("reason").stringValue()))
                    : new Park(step.get("reason").stringValue());
            case "defer" -> throw new Defer(Duration.ofMillis(step.get("delay_ms").longValue()));
            case "panic" -> throw new AssertionError(text);
            default -> { }
        }
    }

    private static Object plain(Object value) {
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> plain = new HashMap<>();
            map.forEach((name, each) -> plain.put(name.toString(), plain(each)));
            return plain;
        }
        return value instanceof List<?> list ? list.stream().map(ScenarioDriver::plain).toList()
                : value == null || value instanceof Number || value instanceof Boolean ? value
                : value instanceof byte[] bytes ? Arrays.toString(bytes) : value.toString();
    }

    private static byte[] sha256(byte[] body) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(body);
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    private static final class Told extends AppenderBase<ILoggingEvent> {
        @Override
        protected void append(ILoggingEvent event) {
            say("log", Map.of("level", event.getLevel().toString().toLowerCase(java.util.Locale.ROOT), "text", event.getFormattedMessage()));
        }
    }
}

class Error extends RuntimeException {
    Error(String message) {
        super(message);
    }
}

class Timeout extends RuntimeException {
    Timeout(String message) {
        super(message);
    }
}

class ReadTimeout extends RuntimeException {
    ReadTimeout(String message) {
        super(message);
    }
}

class Broken extends RuntimeException {
    Broken(String message) {
        super(message);
    }
}

class Hopeless extends RuntimeException {
    Hopeless(String message) {
        super(message);
    }
}
