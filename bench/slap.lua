-- The queries of mysqlslap for sysbench: each thread sends the lines of a file, one after the other
-- and again from the start, as text. A key in a line stands for one that is drawn.

sysbench.cmdline.options = {
   statements = {"File with one statement a line", ""},
   rows = {"Keys are drawn from 1 to this", 99},
}

function thread_init()
   connection = sysbench.sql.driver():connect()
   before, after, sent = {}, {}, 0
   for line in io.lines(sysbench.opt.statements) do
      local head, tail = line:match("^(.* WHERE id =  ')[^']*(')$")
      table.insert(before, head or line)
      table.insert(after, tail or false)
   end
end

function event()
   local line = sent % #before + 1
   sent = sent + 1
   if after[line] then
      local key = sysbench.rand.uniform(1, sysbench.opt.rows)
      connection:query(before[line] .. key .. after[line])
   else
      connection:query(before[line])
   end
end

function thread_done()
   connection:disconnect()
end
