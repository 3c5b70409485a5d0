// Two clients: for the broker of the application, and for another virtual host, cluster or user.

import 'reflect-metadata'

import { Injectable, Module } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { InjectPublisher, RetryConsume, RetryRmqModule, RetryRmqPublisher } from 'retryrmq/nestjs'

// ANCHOR: settings
@Injectable()
class Settings {
  readonly reports = process.env.REPORTS_URL ?? process.env.RETRYRMQ_URL
}

@Module({ providers: [Settings], exports: [Settings] })
class SettingsModule {}
// ANCHOR_END: settings

// ANCHOR: clients
@Injectable()
class Reports {
  constructor(
    private readonly rmq: RetryRmqPublisher,
    @InjectPublisher('reports') private readonly reports: RetryRmqPublisher,
  ) {}

  @RetryConsume('example.sales')
  async sold(sale: { id: number }): Promise<void> {
    await this.reports.publish('example.reports', { sale: sale.id })
  }

  @RetryConsume('example.reports', { client: 'reports' })
  report({ sale }: { sale: number }): void {
    console.log(`a report of sale ${sale}`)
  }

  async sell(id: number): Promise<void> {
    await this.rmq.publish('example.sales', { id })
  }
}

const defaults = { dlx: true, retry: 'fixed(5s, retries=3)' } // for all methods of a client

@Module({
  imports: [
    RetryRmqModule.forRoot({ defaults }),
    RetryRmqModule.forRootAsync({
      name: 'reports',
      imports: [SettingsModule],
      inject: [Settings],
      useFactory: ({ reports }: Settings) => ({ url: reports, wait: true, defaults }),
    }),
  ],
  providers: [Reports],
})
class AppModule {}
// ANCHOR_END: clients

const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error', 'warn'] })
app.enableShutdownHooks()
await app.get(Reports).sell(7)
