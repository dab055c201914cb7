// @node-idempotency/nestjs as its README sets it up, with its memory storage. Without TypeScript, decorators are called.
require("reflect-metadata");
const { Body, Controller, Get, Module, Post, UnauthorizedException, UseGuards } = require("@nestjs/common");
const { NestFactory } = require("@nestjs/core");
const { Idempotent, NodeIdempotencyModule, StorageAdapterEnum } = require("@node-idempotency/nestjs");

let payments = 0;

class HasCaller {
  canActivate(context) {
    if (!context.switchToHttp().getRequest().headers.authorization) throw new UnauthorizedException();
    return true;
  }
}

class Payments {
  async pay(body) {
    await new Promise((done) => setTimeout(done, 100));
    payments += 1;
    return { id: payments, amount: body.amount };
  }

  count() {
    return { count: payments };
  }
}

function decorate(name, decorators) {
  const descriptor = Object.getOwnPropertyDescriptor(Payments.prototype, name);
  for (const decorator of decorators) decorator(Payments.prototype, name, descriptor);
}

Controller()(Payments);
Body()(Payments.prototype, "pay", 0);
decorate("pay", [Idempotent(), UseGuards(HasCaller), Post("payments")]);
decorate("count", [Get("count")]);

class App {}
const storage = { adapter: StorageAdapterEnum.memory };
Module({ imports: [NodeIdempotencyModule.forRootAsync({ storage })], controllers: [Payments] })(App);

NestFactory.create(App, { logger: ["error"] }).then((app) => app.listen(process.env.PORT, "127.0.0.1"));
