"""Federations of sites: a server that holds no rows, and clients that keep theirs, with a transport of one's own."""

from fedconvex.remote.credentials import TLS, Plain
from fedconvex.remote.invitations import Incident, SiteWarning
from fedconvex.remote.ledger import Limits
from fedconvex.remote.site import Site
from fedconvex.remote.site_roster import Roster
from fedconvex.remote.sockets import Exchange, serve
from fedconvex.remote.transports import in_process

__all__ = ["TLS", "Exchange", "Incident", "Limits", "Plain", "Roster", "Site", "SiteWarning", "in_process", "serve"]
