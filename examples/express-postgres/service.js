// A payments service that writes the payment, its receipt and the stored answer in one transaction of its own.

import express from "express";
import pg from "pg";

const app = express();
const pool = new pg.Pool({
  connectionString: process.env.DATABASE_URL ?? "postgres://shop:shop@127.0.0.1/postgres",
});

app.use(express.json());

app.post("/payments", async (request, response) => {
  const { amount, currency } = request.body;
  const headers = { "content-type": "application/json; charset=utf-8" };
  const body = await transaction(async (db) => {
    const { rows } = await db.query(
      "INSERT INTO payment (amount, currency) VALUES ($1, $2) RETURNING id, amount, currency",
      [amount, currency],
    );
    const body = Buffer.from(JSON.stringify(rows[0]));
    await db.query("SELECT onlyonce_send('receipts', $1, group_key => $2)", [body, currency]);
    // The gateway sends the token: the right to complete this attempt. Where the attempt may no longer complete, or has, this
    // fails with OO001 or OO002: nothing is committed, and the stored answer goes out instead of the 500.
    const token = request.get("Onlyonce-Token");
    await db.query("SELECT onlyonce_complete($1, $2, $3, $4)", [token, 201, headers, body]);
    return body;
  });
  response.status(201).set(headers).send(body); // only now that it is committed
});

async function transaction(work) {
  const db = await pool.connect();
  let failed;
  try {
    await db.query("BEGIN");
    const result = await work(db);
    await db.query("COMMIT");
    return result;
  } catch (error) {
    failed = error;
    throw error;
  } finally {
    db.release(failed); // a connection that failed is closed, which rolls back
  }
}

app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
