package io.github.retryrmq.spring;

import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** Retries where {@code retryrmq.dlx=true} is set, for all queues or for one. */
@AutoConfiguration
@ConditionalOnClass(AbstractMessageListenerContainer.class)
@EnableConfigurationProperties(RetryrmqProperties.class)
public class RetryrmqAutoConfiguration {

    /** Static, because it must be there before the first container is made. */
    @Bean
    @ConditionalOnMissingBean
    static Retryrmq retryrmq(ObjectProvider<RetryrmqProperties> properties) {
        return new Retryrmq(() -> properties.getObject()::options, () -> properties.getObject().isOnAnywhere());
    }
}
