"""A Flower grid in this process, whose nodes answer when they are asked: what `flwr` sends, without its processes."""

from __future__ import annotations

import itertools
import random

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

NUMBER = itertools.count(1)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # whose messages they are: Flower asks for it


class LocalGrid(Grid):
    """Nodes with a client app and a context each.

    Parameters
    ----------
    app : ClientApp
    nodes : int
        Each is told its number as ``partition-id``; their ids are large numbers in another order.
    shuffled : int, optional
        Answers come in an order drawn by this seed.
    """

    def __init__(self, app, nodes, shuffled=None):
        self.app, self.contexts, self.answers, self.lost = app, {}, {}, set()
        self.order, self.pushed = random.Random(shuffled), []
        for k in range(nodes):
            self.add(k)

    def add(self, k):
        node = (7919 * next(NUMBER)) % 10007 + (1 << 60)
        config = UserConfig({"partition-id": k})
        self.contexts[node] = Context(1, node, config, RecordDict(), UserConfig())
        return node

    def set_run(self, run):
        pass

    @property
    def run(self):
        return None

    def create_message(self, *args, **more):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        names = []
        for message in messages:
            name, node = f"message {next(NUMBER)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            self.pushed.append(message)
            names.append(name)
            if node in self.lost or node not in self.contexts:
                continue
            try:
                self.answers[name] = self.app(message, self.contexts[node])
            except Exception as error:
                self.answers[name] = Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)
        return names

    def pull_messages(self, message_ids):
        return [self.answers.pop(name) for name in message_ids if name in self.answers]

    def send_and_receive(self, messages, *, timeout=None):
        found = list(self.pull_messages(self.push_messages(messages)))
        self.order.shuffle(found)
        return found
