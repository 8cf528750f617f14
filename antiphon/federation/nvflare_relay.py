"""NVFLARE as a carrier of messages. Its processes import this file; nothing else of antiphon runs in them.

`ServerRelay` is the only workflow of the server's job, `SiteRelay` the only executor of a site's. Each passes
messages between NVFLARE and a socket of the antiphon process on its machine, which has the algorithm or the
speech. A new job can therefore start at any time: whatever was not answered is pushed again.

What NVFLARE 2.9.0 does by default, and what is done about it:

- A site asks for work every 2 s, and finished tasks are swept every 0.2 s: see `JOB` and `task_check_period`.
- Callbacks run under the controller's lock: they only queue.
- A task without an end is one with timeout 0; the deadline that counts is the pool's.
- A site that registers while a job runs gets no part of it, and the job knows a site that registers again by
  its old token. `Rejoin` and `_sync_clients` mend both, with calls that are not public: pin the version.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.controller_spec import Task as FlareTask
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.decomposers import numpy_decomposers

from antiphon.federation.engine_process import connect
from antiphon.pools.flat_tensors import Buffer
from antiphon.pools.remote_link import Channel, pushes, send_answer, send_error

APP = "app_site"  # the part of the job that sites get
numpy_decomposers.register()
DONE = (TaskCompletionStatus.OK, TaskCompletionStatus.CANCELLED)


def as_array(data: Buffer) -> np.ndarray:
    """Return bytes as NVFLARE carries them fastest: it sends arrays in chunks, and bytes in one piece."""
    return np.frombuffer(data, dtype=np.uint8)


class ServerRelay(Controller):
    """Turns what the server's antiphon process pushes into tasks, and their results into answers."""

    def __init__(self) -> None:
        super().__init__(task_check_period=0.05)
        self._tasks: dict[str, FlareTask] = {}
        self._results: queue.SimpleQueue[tuple[str, memoryview | str]] = queue.SimpleQueue()

    def start_controller(self, fl_ctx: FLContext) -> None: ...
    def stop_controller(self, fl_ctx: FLContext) -> None: ...
    def process_result_of_unknown_task(self, *late: Any, **more: Any) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        channel = connect()
        for work in (self._answer, self._sync_clients):
            threading.Thread(target=work, args=(channel, abort_signal, fl_ctx), daemon=True).start()
        for push in pushes(channel):  # ends with the antiphon process, and with the job
            if push.message is None:
                if (task := self._tasks.pop(push.ticket, None)) is not None:
                    self.cancel_task(task, fl_ctx=fl_ctx)
                continue
            data = Shareable()
            data["head"], data["body"] = push.message.head, as_array(push.message.body)
            self._tasks[push.ticket] = self._task(push.ticket, data)
            self.send(self._tasks[push.ticket], fl_ctx, targets=[push.site])

    def _task(self, ticket: str, data: Shareable) -> FlareTask:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            code = result.get_return_code(ReturnCode.OK)
            self._results.put((ticket, memoryview(result["answer"]) if code == ReturnCode.OK else str(code)))

        def done(task: FlareTask, fl_ctx: FLContext) -> None:
            if task.completion_status not in DONE:
                self._results.put((ticket, f"the task ended with {task.completion_status}"))

        return FlareTask("work", data, timeout=0, result_received_cb=received, task_done_cb=done)

    def _answer(self, channel: Channel, abort_signal: Signal, fl_ctx: FLContext) -> None:
        while not abort_signal.triggered:
            try:
                ticket, result = self._results.get(timeout=0.2)
            except queue.Empty:
                continue
            self._tasks.pop(ticket, None)
            try:
                if isinstance(result, str):
                    send_error(channel, ticket, result)
                else:
                    send_answer(channel, ticket, result)
            except ConnectionError:
                return
        channel.close()

    def _sync_clients(self, channel: Channel, abort_signal: Signal, fl_ctx: FLContext) -> None:
        while not abort_signal.triggered:
            fl_ctx.get_engine().sync_clients_from_main_process()  # tokens of sites that registered again
            time.sleep(1.0)


class SiteRelay(Executor):
    """Passes a task to the antiphon process of the site, and its answer back."""

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        answers: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()

        def ask() -> None:
            try:
                channel = connect()
                head, body = shareable["head"], memoryview(shareable["body"])
                channel.send({"head_bytes": len(head)}, head, body)
                frame = channel.receive()
                channel.close()
            except OSError:
                frame = None
            answers.put(None if frame is None else frame[1])

        threading.Thread(target=ask, daemon=True).start()
        while not abort_signal.triggered:
            try:
                answer = answers.get(timeout=0.2)
            except queue.Empty:
                continue
            if answer is None:
                return make_reply(ReturnCode.EXECUTION_EXCEPTION)
            result = Shareable()
            result["answer"] = as_array(answer)
            return result
        return make_reply(ReturnCode.TASK_ABORTED)


class Rejoin(FLComponent):
    """Deploys the running job to sites that it does not know: new ones, and those that registered again."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self._watch, args=(fl_ctx.get_engine(),), daemon=True).start()

    def _watch(self, engine: Any) -> None:
        while True:
            time.sleep(1.0)
            for job_id, info in list(engine.run_processes.items()):
                for client in list(engine.client_manager.get_clients().values()):
                    if client.token not in info[RunProcessKey.PARTICIPANTS]:
                        try:
                            self._deploy(engine, job_id, info, client)
                        except Exception as error:  # it is tried again
                            self.logger.warning(f"{client.name} cannot join yet: {error}")

    def _deploy(self, engine: Any, job_id: str, info: Any, client: Any) -> None:
        before = info[RunProcessKey.PARTICIPANTS]
        others = {token: other for token, other in before.items() if other.name != client.name}
        with engine.new_context() as fl_ctx:
            job = engine.job_def_manager.get_job(job_id, fl_ctx)
            now = {**others, client.token: client}
            job.meta[JobMetaKey.JOB_CLIENTS.value] = [participant.to_dict() for participant in now.values()]
            app = job.get_application(APP, fl_ctx)
            deployment = engine.job_runner._make_deploy_message(job, app, APP, fl_ctx)
            engine._send_admin_requests({client.token: deployment}, fl_ctx, timeout_secs=20)
            ((_, reserved),) = engine.check_client_resources(job, {client.name: {}}, fl_ctx).values()
            info[RunProcessKey.PARTICIPANTS] = now
            engine.start_client_job(job, {client.name: DispatchInfo(APP, {}, reserved)}, fl_ctx)
