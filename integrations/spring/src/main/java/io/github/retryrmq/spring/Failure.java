package io.github.retryrmq.spring;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.UndeclaredThrowableException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

import org.springframework.amqp.listener.ListenerExecutionFailedException;

/**
 * Why an attempt failed, as the headers of a copy have it.
 *
 * @param error one line for people, without the line ends of {@code text}
 * @param type the error's class, or empty
 * @param types all names that a rule may know it by: classes and superclasses of it and of its causes, with and without their package
 * @param stack for the record of a parked message, or null
 */
record Failure(String text, String error, String type, List<String> types, String stack) {

    private static final Pattern WHITE = Pattern.compile("\\s+", Pattern.UNICODE_CHARACTER_CLASS);
    /** A run of letters, digits and hyphens. One with an ASCII digit is an id, a number or an address, which differs from message to message. */
    private static final Pattern RUN = Pattern.compile("[\\p{IsAlphabetic}\\p{N}-]++");
    private static final Pattern CONTROL = Pattern.compile("\\p{Cntrl}");
    private static final Pattern DIGIT = Pattern.compile("[0-9]");

    static Failure of(String error) {
        return new Failure(error, error, "", List.of(""), null);
    }

    static Failure of(Throwable thrown) {
        Throwable own = unwrapped(thrown);
        StringWriter stack = new StringWriter();
        own.printStackTrace(new PrintWriter(stack));
        List<String> types = new ArrayList<>();
        for (Throwable each : chain(own)) {
            for (Class<?> type = each.getClass(); type != Throwable.class; type = type.getSuperclass()) {
                types.add(type.getName());
                types.add(type.getSimpleName());
            }
        }
        // What asks for parking is no error of its own, unless it was caused by one.
        Throwable named = own instanceof Park && own.getCause() != null ? own.getCause() : own;
        String message = own.getMessage() == null ? own.getClass().getSimpleName() : own.getMessage();
        String type = named instanceof Park ? "" : named.getClass().getName();
        return new Failure(message, WHITE.matcher(message).replaceAll(" ").strip(), type, types, stack.toString());
    }

    /** What the listener threw, without what Spring puts around it. */
    static Throwable unwrapped(Throwable thrown) {
        Throwable own = thrown;
        while ((own instanceof ListenerExecutionFailedException || own instanceof InvocationTargetException
                || own instanceof UndeclaredThrowableException) && own.getCause() != null) {
            own = own.getCause();
        }
        return own;
    }

    /** A throwable and its causes. */
    static List<Throwable> chain(Throwable thrown) {
        List<Throwable> chain = new ArrayList<>();
        for (Throwable each = thrown; each != null && !chain.contains(each) && chain.size() < 50; each = each.getCause()) {
            chain.add(each);
        }
        return chain;
    }

    /** The first throwable of this type among a throwable and its causes, or null. */
    static <T extends Throwable> T cause(Throwable thrown, Class<T> type) {
        return chain(thrown).stream().filter(type::isInstance).map(type::cast).findFirst().orElse(null);
    }

    static String fingerprint(String type, String error) {
        String normal = RUN.matcher(WHITE.matcher(error).replaceAll(" ").strip()).replaceAll(run -> DIGIT.matcher(run.group()).find() ? "#" : "$0");
        long hash = 0xcbf29ce484222325L;
        for (byte each : (type + "\n" + normal).getBytes(StandardCharsets.UTF_8)) {
            hash = (hash ^ each & 0xff) * 0x100000001b3L;
        }
        return String.format("%016x", hash);
    }

    /** Keeps the beginning and the end of a text, which have an error's cause and place. */
    static String cut(String text, int max) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        if (bytes.length <= max) {
            return text;
        }
        String mark = " … ";
        int half = (max - mark.getBytes(StandardCharsets.UTF_8).length) / 2;
        int head = half;
        while (head > 0 && (bytes[head] & 0xc0) == 0x80) {
            head--;
        }
        int tail = bytes.length - half;
        while (tail < bytes.length && (bytes[tail] & 0xc0) == 0x80) {
            tail++;
        }
        return new String(bytes, 0, head, StandardCharsets.UTF_8) + mark + new String(bytes, tail, bytes.length - tail, StandardCharsets.UTF_8);
    }

    /** For a log line: what would end the line, or move a terminal's cursor, is shown as an escape. */
    @Override
    public String toString() {
        String shown = CONTROL.matcher(cut(text, 1024).replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t"))
                .replaceAll(sign -> String.format("\\\\x%02x", (int) sign.group().charAt(0)));
        return type.isEmpty() ? shown : type + ": " + shown;
    }
}
